"""What a model has read of passages, kept for the next question about them. Knows nothing of prompts or searches."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from antiphon.accel import PrefixCache
from antiphon.retrieval import Passage


class PassageMemory:
    """Keys and values of the passages that were read latest, so that a question about them costs its own tokens alone.

    It holds ``max_tokens`` tokens, prompts and answers counted, give or take those of the requests under way; a small
    model takes some 25 KB for each in half precision. A passage is known by its id.

    Raises:
        ValueError: ``max_tokens`` is negative.
    """

    def __init__(self, max_tokens: int) -> None:
        if max_tokens < 0:
            raise ValueError(f"max_tokens is {max_tokens}; give how many tokens are kept, or 0 for none.")
        self.max_tokens = max_tokens
        self._kept: OrderedDict[str, PrefixCache] = OrderedDict()
        self._lock = Lock()

    @property
    def size(self) -> int:
        """How many tokens are held."""
        with self._lock:
            return sum(prefix.size for prefix in self._kept.values())

    def prefix_of(self, passage: Passage) -> PrefixCache:
        """What was read of this passage, to be handed on with a request about it; the oldest make way."""
        with self._lock:
            prefix = self._kept.setdefault(passage.id, PrefixCache())
            self._kept.move_to_end(passage.id)
            held = sum(each.size for each in self._kept.values())
            while held > self.max_tokens and len(self._kept) > 1:
                _, oldest = self._kept.popitem(last=False)
                held -= oldest.size
            return prefix

    def clear(self) -> None:
        """Forget everything, and free its memory."""
        with self._lock:
            self._kept.clear()
