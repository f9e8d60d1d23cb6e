"""What a measurement ran on, and by which command: processor, threads, versions. Measures nothing."""

from __future__ import annotations

import platform
import re
import shlex
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

UNITS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
"""What of a processor decides how fast it multiplies, as Linux calls it."""


def machine(device: Any) -> dict[str, Any]:
    """The processor (and the GPU, where that is the device), its units, the threads, and the versions that ran."""
    import torch

    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "processor": processor(),
        "units": units(),
        "device": gpu or device.type,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "antiphon": version("antiphon"),
    }


def command_line() -> str:
    """The command that is running, as one would type it."""
    return shlex.join(["antiphon", *sys.argv[1:]])


def processor() -> str:
    """The processor's name: as Linux tells it, else as Python does."""
    named = re.search(r"^model name\s*: (.+)$", _cpuinfo(), flags=re.MULTILINE)
    return named[1].strip() if named else platform.processor() or platform.machine()


def units() -> list[str]:
    """The vector units among `UNITS` that the processor has; none where the system does not tell."""
    flags = re.search(r"^flags\s*: (.+)$", _cpuinfo(), flags=re.MULTILINE)
    has = set(flags[1].split()) if flags else set()
    return [unit for unit in UNITS if unit in has]


def _cpuinfo() -> str:
    source = Path("/proc/cpuinfo")
    return source.read_text(encoding="utf-8") if source.is_file() else ""


def facts_of(kind: str, name: str, model: Any) -> dict[str, Any]:
    """What every result says of itself: what was run, on what, by which command."""
    dtype = str(model.dtype).removeprefix("torch.")
    return {"kind": kind, "command": command_line(), "model": name, "dtype": dtype, **machine(model.device)}
