"""Store the results of self-test and speed comparison, so that a model is tested once per machine and setting.

Each result is a small JSON file in the user's cache. A file that cannot be read counts as no result.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from antiphon.accel.engines.openvino.runtime import cpu_name
from antiphon.accel.engines.openvino.store import folder_of
from antiphon.accel.files import write_cache_file

TEST_VERSION = 8
"""Version of the self-test. Raise it when the self-test changes: older results are then ignored."""


@dataclass(frozen=True, slots=True)
class Compatibility:
    """Whether OpenVINO can run a model in one setting, and how fast.

    Attributes:
        failure: Why OpenVINO cannot run the model; empty if the self-test passed.
        speedup: Speed of OpenVINO's decoding steps as a multiple of torch's; None if not measured.
        comparisons: Number of comparisons; the speedup is their geometric mean.
    """

    failure: str = ""
    speedup: float | None = None
    comparisons: int = 0


def load_compatibility(fingerprint: str, setting: str) -> Compatibility | None:
    """Return the stored result for a model on this CPU, or None if there is none.

    Args:
        setting: Precision and number of threads, as in "f32-8".
    """
    try:
        found = json.loads(_path(fingerprint, setting).read_text(encoding="utf-8"))
        if (found["version"], found["cpu"]) != (TEST_VERSION, cpu_name()):
            return None
        failure, speedup, comparisons = found["failure"], found["speedup"], int(found.get("comparisons", 1))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    is_valid = isinstance(failure, str) and (speedup is None or isinstance(speedup, float))
    return Compatibility(failure, speedup, comparisons) if is_valid else None


def save_compatibility(fingerprint: str, setting: str, result: Compatibility) -> None:
    """Store a result for later processes; if the file cannot be written, they test again."""
    fields = {"version": TEST_VERSION, "cpu": cpu_name(), **asdict(result)}
    write_cache_file(_path(fingerprint, setting), json.dumps(fields).encode())


def _path(fingerprint: str, setting: str) -> Path:
    folder = folder_of(fingerprint)
    return folder.with_name(f"{folder.name}-{setting}.json")
