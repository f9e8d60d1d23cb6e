"""Determine the memory that this process may use, within the limits of the system, containers and the process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil


def available_memory() -> int:
    """Return the bytes that this process may still allocate.

    The result is the minimum of three values: the system's available memory, the memory that the
    limits of the process's control groups (containers) leave, and the memory that the limits of
    `ulimit` leave. Cached pages of files count as available, because the kernel can drop them.
    """
    return max(min([psutil.virtual_memory().available, *_group_limits(), *_own_limits()]), 0)


def _group_limits() -> Iterator[int]:
    """Yield the bytes left by each limit of this process's control groups (versions 1 and 2)."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, place = line.split(":", 2)
            if not controllers:
                root, names = Path("/sys/fs/cgroup"), ("memory.max", "memory.current", "inactive_file")
            elif "memory" in controllers.split(","):
                root = Path("/sys/fs/cgroup/memory")
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            else:
                continue
            group = root / place.lstrip("/")
            for folder in (group, *group.parents):
                with suppress(OSError, ValueError):  # a container may not see the groups around it
                    yield _left(folder, *names)
                if folder == root:
                    break


def _left(folder: Path, limit: str, usage: str, droppable: str) -> int:
    """Return the bytes that a control group's limit leaves.

    Cached pages of files count as free, because the kernel can drop them.

    Raises:
        OSError, ValueError: The group has no limit, or this process cannot see it.
    """
    most, used = (int((folder / name).read_text(encoding="ascii")) for name in (limit, usage))
    facts = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
    return most - used + int(facts.get(droppable, 0))


def _own_limits() -> Iterator[int]:
    """Yield the bytes that the limits of `ulimit -v` and `ulimit -d` leave."""
    if sys.platform == "win32":
        return
    import resource

    for kind, field in ((resource.RLIMIT_AS, "vms"), (resource.RLIMIT_DATA, "data")):
        limit = resource.getrlimit(kind)[0]
        if limit != resource.RLIM_INFINITY:
            yield limit - getattr(psutil.Process().memory_info(), field, 0)
