"""What was found out about models on OpenVINO, kept for the next start: small files in the user's cache.

Knows what a verdict says, and nothing of how it was found. A file that cannot be read is no verdict.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from antiphon.accel.engines.openvino.runtime import core
from antiphon.accel.engines.openvino.store import folder_of
from antiphon.accel.files import write_cache_file

TRIED = 4
"""Raised whenever more, or something else, comes to be asked of a model before it is taken."""


@dataclass(frozen=True, slots=True)
class Compatibility:
    """What is known of a model in one precision: why it cannot be taken, if it cannot, and how it compares with torch.

    ``obstacle`` is empty where the self-test agrees; ``ratio`` is how many times faster than torch its steps are, None
    where that was not measured.
    """

    obstacle: str = ""
    ratio: float | None = None


def load_compatibility(key: str, setting: str) -> Compatibility | None:
    """What is known of the model of this fingerprint in this setting on this CPU; None where nothing is."""
    try:
        found = json.loads(_path(key, setting).read_text(encoding="utf-8"))
        if found.pop("tried") != TRIED or found.pop("cpu") != _cpu():
            return None
        obstacle, ratio = found["obstacle"], found["ratio"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    is_whole = isinstance(obstacle, str) and (ratio is None or isinstance(ratio, float))
    return Compatibility(obstacle, ratio) if is_whole else None


def save_compatibility(key: str, setting: str, verdict: Compatibility) -> None:
    """Keep it for the next start; where nothing can be written it is found again."""
    found = {"tried": TRIED, "cpu": _cpu(), "obstacle": verdict.obstacle, "ratio": verdict.ratio}
    write_cache_file(_path(key, setting), json.dumps(found).encode())


def _path(key: str, setting: str) -> Path:
    folder = folder_of(key)
    return folder.with_name(f"{folder.name}-{setting}.json")


def _cpu() -> str:
    return str(core().get_property("CPU", "FULL_DEVICE_NAME"))
