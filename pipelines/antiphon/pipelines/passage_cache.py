"""Keeps the KV caches of recently used passages, so that later questions about the same passages can reuse them."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from antiphon.accel import PrefixCache
from antiphon.retrieval import Passage


class PassageCache:
    """Prefix caches of the most recently used passages, so that a later question prefills only its own tokens.

    Passages are identified by their ids.

    Args:
        max_tokens: maximum number of tokens of prompts and answers whose KV cache is kept. Requests
            in progress may exceed it. A small model needs about 25 KB per token in half precision.

    Raises:
        ValueError: ``max_tokens`` is negative.
    """

    def __init__(self, max_tokens: int) -> None:
        if max_tokens < 0:
            raise ValueError(f"max_tokens is {max_tokens}; give the number of tokens to keep, or 0 for none.")
        self.max_tokens = max_tokens
        self._prefixes: OrderedDict[str, PrefixCache] = OrderedDict()
        self._lock = Lock()

    @property
    def size(self) -> int:
        """The number of tokens that are kept."""
        with self._lock:
            return sum(prefix.size for prefix in self._prefixes.values())

    def prefix_of(self, passage: Passage) -> PrefixCache:
        """Return the prefix cache of a passage; beyond ``max_tokens``, evict the least recently used passages."""
        with self._lock:
            prefix = self._prefixes.setdefault(passage.id, PrefixCache())
            self._prefixes.move_to_end(passage.id)
            size = sum(each.size for each in self._prefixes.values())
            while size > self.max_tokens and len(self._prefixes) > 1:
                _, oldest = self._prefixes.popitem(last=False)
                size -= oldest.size
            return prefix

    def clear(self) -> None:
        """Drop all prefix caches and free their memory."""
        with self._lock:
            self._prefixes.clear()
