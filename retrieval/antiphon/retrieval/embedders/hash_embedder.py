"""An embedder without a model, for tests and first experiments."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from antiphon.retrieval.embedders.protocol import TokenVectors, check_texts
from antiphon.retrieval.vector_index.flat import Vectors, normalized


class HashEmbedder:
    """Deterministic vectors without a model. The vector of a text is the sum of its words' vectors.

    The hash of a word gives its vector, a pattern of signs. Texts are similar if they share words.

    Args:
        dim: The dimension, a multiple of 8 from 8 to 512.
    """

    name = "hash"
    max_tokens = 512
    vocabulary_size = 1 << 16

    def __init__(self, dim: int = 256) -> None:
        if not 8 <= dim <= 512 or dim % 8:
            raise ValueError(f"dim is {dim}; a multiple of 8 from 8 to 512 is needed.")
        self.dim = dim
        self.fingerprint = f"hash:words:{dim}"

    def count_tokens(self, text: str) -> int:
        """Return the number of words."""
        return len(_words(text))

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """Return the normalized sum of the vectors of each text's words."""
        check_texts(texts)
        sums = [np.sum([self._vector(word) for word in _words(text)[: self.max_tokens]], axis=0) for text in texts]
        return normalized(np.array(sums, dtype=np.float32)) if sums else np.empty((0, self.dim), np.float32)

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """Return the same vectors as for documents."""
        return self.embed_documents(texts)

    def token_ids(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """Return a token id for each word, derived from its hash."""
        return [np.array([_digest(word)[0] for word in _words(text)[: self.max_tokens]], np.int64) for text in texts]

    def token_vectors(self, texts: Sequence[str]) -> list[TokenVectors]:
        """Return a vector for each word, independent of the words around it."""
        vectors = [np.array([self._vector(word) for word in _words(text)[: self.max_tokens]]) for text in texts]
        return [TokenVectors(*pair) for pair in zip(self.token_ids(texts), map(normalized, vectors), strict=True)]

    def _vector(self, word: str) -> Vectors:
        bits = np.unpackbits(np.frombuffer(_digest(word)[1][: self.dim // 8], np.uint8))
        return bits.astype(np.float32) * 2 - 1


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower()) or [text]


def _digest(word: str) -> tuple[int, bytes]:
    digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:2], "big"), digest
