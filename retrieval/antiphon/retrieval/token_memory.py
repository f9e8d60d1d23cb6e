"""The token vectors of texts that were read last, each computed once. Knows nothing of what they are compared with."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from antiphon.retrieval.embed import TokenEmbedder


class TokenMemory:
    """Keeps the token vectors of the last ``remembered`` texts, in half precision. Several threads may read at once.

    Raises:
        ValueError: ``remembered`` is negative.
    """

    def __init__(self, embedder: TokenEmbedder, remembered: int) -> None:
        if remembered < 0:
            raise ValueError(f"remembered is {remembered}; give how many texts are kept, or 0 for none.")
        self._embedder = embedder
        self._seen: OrderedDict[str, NDArray[np.float16]] = OrderedDict()
        self._remembered = remembered
        self._lock = threading.Lock()

    def vectors(self, texts: Sequence[str]) -> list[NDArray[np.float16]]:
        """The vectors of each text's tokens, of shape (tokens, dim), computed where they are not remembered."""
        with self._lock:
            known = {text: self._seen[text] for text in texts if text in self._seen}
        new = [text for text in dict.fromkeys(texts) if text not in known]
        computed = self._embedder.token_vectors(new)
        known |= {text: tokens.vectors.astype(np.float16) for text, tokens in zip(new, computed, strict=True)}
        with self._lock:
            for text in texts:
                self._seen[text] = known[text]
                self._seen.move_to_end(text)
            while len(self._seen) > self._remembered:
                self._seen.popitem(last=False)
        return [known[text] for text in texts]
