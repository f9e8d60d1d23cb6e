"""Choose the device, precision and batch size for an encoder."""

from __future__ import annotations

import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path

from antiphon.accel.processor import has_bfloat16_units


def pick_device(device: str | None) -> str:
    """Return the requested device. The default is a GPU (``cuda``, ``mps``), else ``cpu``.

    Raises:
        ValueError: A CUDA device is requested and there is none.
    """
    if device == "cpu" or (device is None and not _may_have_gpu()):
        return "cpu"
    import torch

    if device is None:
        return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if str(device).startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device is {device}, but torch finds no CUDA GPU here; leave it out or give 'cpu'.")
    return str(device)


@cache
def _may_have_gpu() -> bool:
    """Return False if torch certainly has no GPU, without importing torch."""
    if sys.platform != "linux":
        return True
    devices = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))
    return not version("torch").endswith("+cpu") and any(path.exists() for path in devices)


def pick_precision(device: str) -> str:
    """Return "float16" for a GPU, "bfloat16" for a CPU with bfloat16 instructions, "float32" for other CPUs.

    Float16 would be several times slower on a CPU.
    """
    if not device.startswith("cpu"):
        return "float16"
    return "bfloat16" if has_bfloat16_units() else "float32"


def batch_size(device: str) -> int:
    """Return the number of texts in a forward pass.

    On a CPU the number is small, so that a batch fits the processor's cache.
    """
    return 16 if device.startswith("cpu") else 128
