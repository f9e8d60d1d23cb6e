"""The interfaces of embedders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from antiphon.retrieval.vector_index.flat import Vectors


class Embedder(Protocol):
    """Maps texts to vectors. The inner product of two vectors measures the texts' similarity.

    Vectors are float32, of length 1 and of shape (n, dim); no texts give shape (0, dim).
    """

    @property
    def name(self) -> str:
        """The name by which `load_embedder` finds the embedder; any text if users pass the embedder as an object."""

    @property
    def dim(self) -> int:
        """The dimension of the vectors."""

    @property
    def fingerprint(self) -> str:
        """A text that identifies the embedder's weights, pooling and length limit.

        Vectors of two embedders are comparable only if the embedders' fingerprints are equal.
        """

    @property
    def max_tokens(self) -> int:
        """The maximum length of a text in tokens, without special tokens; longer texts are cut off."""

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text, without special tokens."""

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of texts to be searched, of shape (texts, dim)."""

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of questions, of shape (texts, dim)."""


@dataclass(frozen=True, slots=True)
class TokenVectors:
    """The tokens of a text, without special tokens.

    ``ids`` has the shape (tokens,). ``vectors`` are unit vectors, of shape (tokens, dim).
    """

    ids: NDArray[np.int64]
    vectors: Vectors


@runtime_checkable
class TokenEmbedder(Embedder, Protocol):
    """An embedder that also returns the vectors of single tokens, for late interaction."""

    @property
    def vocabulary_size(self) -> int:
        """The number of token ids."""

    def token_ids(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """Return the token ids of each text, without special tokens, up to the length limit."""

    def token_vectors(self, texts: Sequence[str]) -> list[TokenVectors]:
        """Return the tokens of each text with their contextual vectors."""


def check_texts(texts: Sequence[str]) -> Sequence[str]:
    """Check that ``texts`` is a list of strings, and return it.

    Raises:
        TypeError: The argument is a single string, or an item is not a string.
    """
    if isinstance(texts, str):
        raise TypeError("texts is one string; a list of strings is needed.")
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"Text {place} is {type(text).__name__}; a string is needed.")
    return texts
