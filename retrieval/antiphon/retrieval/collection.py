"""Interfaces of passage indexes, and checks of passages before they are indexed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from antiphon.retrieval.document import LONE_SURROGATE
from antiphon.retrieval.embedders.protocol import Embedder
from antiphon.retrieval.errors import IndexMismatch
from antiphon.retrieval.filters import MetadataFilter, json_metadata
from antiphon.retrieval.fusion import Fusion
from antiphon.retrieval.passage import Passage
from antiphon.retrieval.vector_index.flat import Vectors


class PassageIndex(Protocol):
    """A set of passages that can be searched by vector and by keywords."""

    def vector_search(self, vector: Vectors, k: int, where: MetadataFilter | None = None) -> list[Passage]:
        """Return the ``k`` passages nearest to a vector, best first. A passage's score is the cosine.

        Args:
            vector: The query, of shape (dim,).
            k: Number of passages to return; fewer are returned if fewer match.
            where: Only passages that match this filter are searched.
        """

    def keyword_search(self, question: str, k: int, where: MetadataFilter | None = None) -> list[Passage]:
        """Return at most ``k`` passages that share words with a question, best first, with a score such as BM25.

        An index without a keyword index returns an empty list.
        """


@runtime_checkable
class HybridIndex(PassageIndex, Protocol):
    """A passage index that fuses its own two rankings, and reads only the returned passages."""

    def hybrid_search(
        self,
        vector: Vectors,
        question: str,
        k: int,
        *,
        fusion: Fusion,
        candidates: int,
        where: MetadataFilter | None = None,
    ) -> list[Passage]:
        """Return the ``k`` best passages of vector search and keyword search together.

        Args:
            vector: The query vector, of shape (dim,).
            fusion: Merges the two rankings.
            candidates: Number of passages that each of the two searches contributes.
        """


@runtime_checkable
class Collection(PassageIndex, Protocol):
    """A passage index that can be changed: an index folder, or a table of PostgreSQL."""

    def __len__(self) -> int:
        """Return the number of passages."""

    def upsert(self, passages: Sequence[Passage], vectors: Vectors) -> None:
        """Insert passages; a passage replaces an indexed passage with the same id.

        Args:
            vectors: The vectors of the passages, of shape (passages, dim).
        """

    def remove(self, ids: Sequence[str]) -> None:
        """Remove the passages with these ids; unknown ids are ignored."""


def keep_last_of_each_id(passages: Sequence[Passage], vectors: Vectors) -> tuple[list[Passage], Vectors]:
    """Return, for each id, the last passage with this id and the vector of this passage.

    Args:
        vectors: The vectors of the passages, of shape (passages, dim).

    Raises:
        ValueError: The numbers of passages and vectors differ.
    """
    if len(passages) != len(vectors):
        raise ValueError(f"{len(passages)} passages and {len(vectors)} vectors; each passage needs one.")
    places = sorted({passage.id: place for place, passage in enumerate(passages)}.values())
    return [passages[place] for place in places], vectors[places]


def require_distinct(passages: Sequence[Passage]) -> None:
    """Raise an error if there are no passages, or if two passages have the same id.

    Raises:
        ValueError: There are no passages, or two have the same id.
    """
    if not passages:
        raise ValueError("There is no passage to index.")
    identifier, times = Counter(passage.id for passage in passages).most_common(1)[0]
    if times > 1:
        raise ValueError(f"{times} passages have the id {identifier}; each needs one of its own.")


def require_savable(passages: Sequence[Passage]) -> None:
    """Raise an error if passages cannot be saved. This check runs before passages are embedded.

    Raises:
        TypeError: A metadata value is neither a JSON value nor a date.
        ValueError: The text, id, source or metadata of a passage contains an unpaired surrogate.
    """
    for passage in passages:
        facts = {"text": passage.text, "id": passage.id, "source": passage.source}
        facts |= {
            f"metadata {name!r}": json.dumps([name, value], ensure_ascii=False)
            for name, value in json_metadata(passage).items()
        }
        broken = next((name for name, value in facts.items() if LONE_SURROGATE.search(value)), None)
        if broken:
            raise ValueError(
                f"The passage {passage.id!r} of {passage.source!r} holds half a character (a lone surrogate) in its "
                f"{broken}, which cannot be saved; replace it."
            )


def require_embedder(
    location: str | Path, name: str, fingerprint: str, embedder: Embedder, otherwise: str = "make the index again"
) -> None:
    """Raise an error if an index was made with another embedder.

    Args:
        otherwise: Advice for the error message: what else the user can do.

    Raises:
        IndexMismatch: The fingerprints differ.
    """
    if embedder.fingerprint != fingerprint:
        raise IndexMismatch(
            f"The index in {location} was made with the embedder {name} ({fingerprint}), which "
            f"is not {embedder.name} ({embedder.fingerprint}). Give that one, or {otherwise}."
        )
