"""Hides the progress bars with which transformers reads and writes weights. Bars of downloads stay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_lock = Lock()
_loading = 0
_were_shown = True


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Hide the bars in this block, in all threads; the user's setting is restored at the end of the last such block."""
    from transformers.utils import logging

    global _loading, _were_shown
    settings = vars(logging)  # the public switch turns off the bars of downloads as well
    with _lock:
        if not _loading:
            _were_shown = settings["_tqdm_active"]
        _loading += 1
        settings["_tqdm_active"] = False
    try:
        yield
    finally:
        with _lock:
            _loading -= 1
            if not _loading:
                settings["_tqdm_active"] = _were_shown
