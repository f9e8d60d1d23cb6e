"""A cache of token vectors, so that repeated texts are embedded once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from antiphon.retrieval.embedders.protocol import TokenEmbedder


class TokenVectorCache:
    """Keeps the token vectors of the most recently used texts in half precision. Thread-safe.

    Args:
        size: Number of texts to keep; 0: none.

    Raises:
        ValueError: ``size`` is negative.
    """

    def __init__(self, embedder: TokenEmbedder, size: int) -> None:
        if size < 0:
            raise ValueError(f"size is {size}; give how many texts to keep, or 0 for none.")
        self._embedder = embedder
        self._seen: OrderedDict[str, NDArray[np.float16]] = OrderedDict()
        self._size = size
        self._lock = threading.Lock()

    def vectors(self, texts: Sequence[str]) -> list[NDArray[np.float16]]:
        """Return the token vectors of each text, of shape (tokens, dim); new texts are embedded."""
        with self._lock:
            known = {text: self._seen[text] for text in texts if text in self._seen}
        new = [text for text in dict.fromkeys(texts) if text not in known]
        computed = self._embedder.token_vectors(new)
        known |= {text: tokens.vectors.astype(np.float16) for text, tokens in zip(new, computed, strict=True)}
        with self._lock:
            for text in texts:
                self._seen[text] = known[text]
                self._seen.move_to_end(text)
            while len(self._seen) > self._size:
                self._seen.popitem(last=False)
        return [known[text] for text in texts]
