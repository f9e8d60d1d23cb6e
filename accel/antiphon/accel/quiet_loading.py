"""Load models with transformers one at a time. No progress bars are shown, except for downloads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

_lock = RLock()


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Inside the block, only this thread may load models; progress bars are hidden in all threads.

    While transformers loads a model it replaces ``PreTrainedModel.tie_weights`` and PyTorch's
    default dtype. If two loads ran at the same time, one could restore the other's replacement;
    then no model with tied weights could be loaded any more.

    Transformers replaces its module at the end of its first import. While one thread runs this
    first import, other threads cannot import names from transformers. Inside the block this cannot
    happen.
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
