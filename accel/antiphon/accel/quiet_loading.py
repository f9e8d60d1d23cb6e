"""Load models with transformers one at a time and without progress bars, except those of downloads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

_lock = RLock()


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Inside the block, only this thread may load models; progress bars are hidden in all threads.

    While transformers loads a model it replaces ``PreTrainedModel.tie_weights`` and PyTorch's default dtype.
    Concurrent loads would restore each other's replacements; then no model with tied weights could
    be loaded any more.

    Inside the block, names can be imported from transformers. Elsewhere such imports fail during
    another thread's first import of transformers, which replaces its module at the end.
    """
    import transformers  # noqa: F401  # waits for another thread's first import, which the next line does not
    from transformers.utils import logging

    settings = vars(logging)  # the public switch turns off the bars of downloads as well
    with _lock:
        were_shown = settings["_tqdm_active"]
        settings["_tqdm_active"] = False
        try:
            yield
        finally:
            settings["_tqdm_active"] = were_shown
