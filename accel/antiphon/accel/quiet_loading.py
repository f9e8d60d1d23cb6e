"""Loads models by transformers one at a time, without the progress bars of weights. Bars of downloads stay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

_lock = RLock()


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Let only this thread load models in this block, and hide the progress bars in all threads.

    While transformers loads a model it replaces ``PreTrainedModel.tie_weights`` and PyTorch's default dtype. Two loads
    at once restore each other's replacements, after which no model with tied weights can be loaded.
    """
    from transformers.utils import logging

    settings = vars(logging)  # the public switch turns off the bars of downloads as well
    with _lock:
        were_shown = settings["_tqdm_active"]
        settings["_tqdm_active"] = False
        try:
            yield
        finally:
            settings["_tqdm_active"] = were_shown
