"""Where a model runs, and in which precision. Knows nothing of models."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_BF16_UNITS = frozenset({"avx512_bf16", "amx_bf16"})


def pick(device: str | None) -> str:
    """The device asked for, or the GPU that is there (``cuda``, ``mps``), or ``cpu``.

    Raises:
        ValueError: a CUDA device is asked for and there is none.
    """
    import torch

    if device is None:
        return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if str(device).startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device is {device}, but torch finds no CUDA GPU here; leave it out or give 'cpu'.")
    return str(device)


def precision(device: str) -> torch.dtype:
    """Float16 on a GPU; on a CPU bfloat16 where it has units for it (float16 would be several times slower there)."""
    import torch

    if not device.startswith("cpu"):
        return torch.float16
    return torch.bfloat16 if _has_bf16_units() else torch.float32


def batch_size(device: str) -> int:
    """Texts in a forward: few on a CPU, where a batch should stay in its cache."""
    return 16 if device.startswith("cpu") else 128


@cache
def _has_bf16_units() -> bool:
    listing = Path("/proc/cpuinfo")
    return listing.exists() and not _BF16_UNITS.isdisjoint(listing.read_text(encoding="utf-8").split())
