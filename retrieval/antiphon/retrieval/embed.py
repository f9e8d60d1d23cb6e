"""Text to vectors: what an embedder is, and a toy one. Knows no other embedder, and nothing of passages."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from antiphon.retrieval.vectors import Vectors, normalized


class Embedder(Protocol):
    """Turns texts into vectors whose inner product measures how similar their meaning is.

    Vectors are float32, of length 1 and of shape (n, dim); no texts give shape (0, dim). ``fingerprint`` says which
    weights, pooling and length limit made them: vectors of equal fingerprints may be compared, others not.
    """

    @property
    def name(self) -> str:
        """What ``resolve`` finds it by, or any name of one that is always handed over."""

    @property
    def dim(self) -> int:
        """How many numbers a vector has."""

    @property
    def fingerprint(self) -> str:
        """What made the vectors."""

    @property
    def max_tokens(self) -> int:
        """How many tokens of a document's text it reads, special tokens not counted; the rest would be cut off."""

    def count_tokens(self, text: str) -> int:
        """How many tokens the text has, without special tokens."""

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """Vectors of the texts that are searched."""

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """Vectors of the questions that search."""


@dataclass(frozen=True, slots=True)
class TokenVectors:
    """One text token by token, without special tokens: ids of shape (tokens,), vectors (tokens, dim) of length 1."""

    ids: NDArray[np.int64]
    vectors: Vectors


@runtime_checkable
class TokenEmbedder(Embedder, Protocol):
    """An embedder that also offers the vectors of single tokens, for late interaction."""

    @property
    def vocabulary(self) -> int:
        """How many token ids there are."""

    def token_ids(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """The token ids of each text, without special tokens; cut off where the embedder stops reading."""

    def token_vectors(self, texts: Sequence[str]) -> list[TokenVectors]:
        """The tokens of each text and their vectors in its context."""


class HashEmbedder:
    """Deterministic vectors without a model: a text is the sum of its words, each a sign pattern from a hash.

    Two texts are near when they share words. For tests, and to try a pipeline where nothing is installed.
    """

    name = "hash"
    max_tokens = 512
    vocabulary = 1 << 16

    def __init__(self, dim: int = 256) -> None:
        if not 8 <= dim <= 512 or dim % 8:
            raise ValueError(f"dim is {dim}; a multiple of 8 from 8 to 512 is needed.")
        self.dim = dim
        self.fingerprint = f"hash:words:{dim}"

    def count_tokens(self, text: str) -> int:
        """How many words the text has."""
        return len(_words(text))

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """The sum of the vectors of each text's words, normalized."""
        checked_texts(texts)
        sums = [np.sum([self._vector(word) for word in _words(text)[: self.max_tokens]], axis=0) for text in texts]
        return normalized(np.array(sums, dtype=np.float32)) if sums else np.empty((0, self.dim), np.float32)

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """The same as for documents."""
        return self.embed_documents(texts)

    def token_ids(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """A number from the hash of each word."""
        return [np.array([_digest(word)[0] for word in _words(text)[: self.max_tokens]], np.int64) for text in texts]

    def token_vectors(self, texts: Sequence[str]) -> list[TokenVectors]:
        """Each word's own vector; it knows no context."""
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


def checked_texts(texts: Sequence[str]) -> Sequence[str]:
    """The texts, if they are texts.

    Raises:
        TypeError: a single string, or something in the sequence that is none.
    """
    if isinstance(texts, str):
        raise TypeError("texts is one string; a list of strings is needed.")
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"Text {place} is {type(text).__name__}; a string is needed.")
    return texts
