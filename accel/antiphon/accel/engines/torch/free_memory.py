"""How much memory a process may still take: the machine's, and what its groups (containers, jobs) allow it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

GROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
"""Where Linux keeps its control groups, and which of them this process is in."""


def free_memory(*, groups: Path = GROUPS, own: Path = OWN) -> int:
    """Bytes; processes that `torchrun` has started together share them."""
    free: int = psutil.virtual_memory().available
    for most, used in _limits(groups, own):
        try:
            free = min(free, int(most.read_text()) - int(used.read_text()))
        except (OSError, ValueError):  # no such group, or no limit: "max"
            continue
    return max(free, 0) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _limits(groups: Path, own: Path) -> Iterator[tuple[Path, Path]]:
    """The files of a group's limit and of what it takes, for this process's own groups and all above them."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        group = Path(path.lstrip("/"))
        for each in (group, *group.parents):
            if not controllers:
                yield groups / each / "memory.max", groups / each / "memory.current"
            elif "memory" in controllers.split(","):
                root = groups / "memory" / each
                yield root / "memory.limit_in_bytes", root / "memory.usage_in_bytes"
