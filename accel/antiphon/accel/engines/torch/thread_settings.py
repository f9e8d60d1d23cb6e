"""Apply torch's settings of a caller's thread to a forward pass in the engine's thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from antiphon.accel.engines.protocol import ThreadSettings


def thread_settings(device: torch.device) -> ThreadSettings:
    """Return the settings of the calling thread that affect a model on this device."""
    kind = device.type
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return ThreadSettings(torch.get_num_threads(), autocast, torch.is_inference_mode_enabled())


@contextmanager
def thread_context(device: torch.device, settings: ThreadSettings) -> Iterator[None]:
    """Give the calling thread these settings, and compute no gradients."""
    if settings.num_threads and settings.num_threads != torch.get_num_threads():
        torch.set_num_threads(settings.num_threads)
    dtype: Any = settings.autocast
    with (
        torch.inference_mode(settings.is_inference),
        torch.no_grad(),
        nullcontext() if dtype is None else torch.autocast(device.type, dtype),
        torch.cuda.device(device) if device.type == "cuda" else nullcontext(),
    ):
        yield
