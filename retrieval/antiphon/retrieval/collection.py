"""The interfaces of passage indexes, which index folders and vector databases implement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from antiphon.retrieval.errors import IndexMismatch
from antiphon.retrieval.filters import MetadataFilter
from antiphon.retrieval.fusion import Fusion
from antiphon.retrieval.passage import Passage
from antiphon.retrieval.vector_index.flat import Vectors


class PassageIndex(Protocol):
    """Passages that can be searched by vector and by keywords."""

    def vector_search(self, vector: Vectors, k: int, where: MetadataFilter | None = None) -> list[Passage]:
        """Return the ``k`` passages nearest to a vector, best first, with their cosine as the score.

        Args:
            vector: The query, of shape (dim,).
            k: How many passages to return; fewer if fewer match.
            where: Only passages that match this filter are searched.
        """

    def keyword_search(self, question: str, k: int, where: MetadataFilter | None = None) -> list[Passage]:
        """Return at most ``k`` passages that share words with a question, best first, with a score such as BM25.

        An index without a keyword index returns an empty list.

        Args:
            question: The words to search for.
            k: The maximum number of passages.
            where: Only passages that match this filter are searched.
        """


@runtime_checkable
class HybridIndex(PassageIndex, Protocol):
    """A passage index that fuses its two rankings itself, and reads only the passages that it returns."""

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
            question: The words to search for.
            k: How many passages to return.
            fusion: Merges the two rankings.
            candidates: How many passages each search contributes.
            where: Only passages that match this filter are searched.
        """


@runtime_checkable
class Collection(PassageIndex, Protocol):
    """A passage index that can be changed: an index folder, or a collection of a vector database."""

    def __len__(self) -> int:
        """Return the number of passages."""

    def upsert(self, passages: Sequence[Passage], vectors: Vectors) -> None:
        """Insert passages; a passage whose id exists is replaced.

        Args:
            passages: The passages.
            vectors: Their vectors, of shape (passages, dim).
        """

    def remove(self, ids: Sequence[str]) -> None:
        """Remove the passages with these ids; unknown ids are ignored."""

    def close(self) -> None:
        """Close the connection to the server; the passages stay."""


def keep_last_of_each_id(passages: Sequence[Passage], vectors: Vectors) -> tuple[list[Passage], Vectors]:
    """Remove duplicate ids: return the last passage with each id, and the vectors of these passages.

    Args:
        passages: Passages, of which several may have the same id.
        vectors: Their vectors, of shape (passages, dim).

    Raises:
        ValueError: The numbers of passages and vectors differ.
    """
    if len(passages) != len(vectors):
        raise ValueError(f"{len(passages)} passages and {len(vectors)} vectors; each passage needs one.")
    places = sorted({passage.id: place for place, passage in enumerate(passages)}.values())
    return [passages[place] for place in places], vectors[places]


def require_same_embedder(collection: str, made_by: str, embedder: str) -> None:
    """Refuse a collection whose vectors were made by another embedder.

    Args:
        collection: The name of the collection, for the message.
        made_by: The fingerprint of the embedder that made its vectors.
        embedder: The fingerprint of the embedder in use.

    Raises:
        IndexMismatch: The fingerprints differ.
    """
    if made_by != embedder:
        raise IndexMismatch(
            f"{collection} holds vectors of the embedder {made_by or 'without a name'}, which is not {embedder}. "
            "Give that one, or another name for the collection."
        )
