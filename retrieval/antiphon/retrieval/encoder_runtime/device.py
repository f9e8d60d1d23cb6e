"""Choose the device, precision and batch size for an encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphon.accel.processor import has_bfloat16_units

if TYPE_CHECKING:
    import torch


def pick_device(device: str | None) -> str:
    """Return the requested device, or by default a GPU (``cuda``, ``mps``) if there is one, else ``cpu``.

    Raises:
        ValueError: A CUDA device is requested and there is none.
    """
    import torch

    if device is None:
        return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if str(device).startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device is {device}, but torch finds no CUDA GPU here; leave it out or give 'cpu'.")
    return str(device)


def pick_dtype(device: str) -> torch.dtype:
    """Return float16 on a GPU; on a CPU bfloat16 if it has instructions for it, else float32.

    Float16 would be several times slower on a CPU.
    """
    import torch

    if not device.startswith("cpu"):
        return torch.float16
    return torch.bfloat16 if has_bfloat16_units() else torch.float32


def batch_size(device: str) -> int:
    """Return the number of texts in a forward pass; small on a CPU, so that a batch fits into its cache."""
    return 16 if device.startswith("cpu") else 128
