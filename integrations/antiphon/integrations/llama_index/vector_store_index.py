"""A LlamaIndex vector store as the index of Antiphon's retriever."""

from __future__ import annotations

from dataclasses import replace

from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
)

from antiphon.integrations.llama_index.nodes import passage_of
from antiphon.retrieval import MetadataFilter as RequiredValues
from antiphon.retrieval import Passage
from antiphon.retrieval.vector_index.flat import Vectors


class VectorStorePassages:
    """Searches a vector store with the vectors of the retriever's embedder; there is no keyword search.

    Args:
        store: a vector store that stores its nodes' text, filled with the retriever's own embedder (a store does not
            name its embedder).

    Raises:
        ValueError: the store does not store text.
    """

    def __init__(self, store: BasePydanticVectorStore) -> None:
        if not store.stores_text:
            raise ValueError(f"{type(store).__name__} stores vectors only; use a store that stores text.")
        self._store = store

    def vector_search(self, vector: Vectors, k: int, where: RequiredValues | None = None) -> list[Passage]:
        """Return the ``k`` nearest nodes, best first, with the store's similarities.

        Args:
            vector: the query, shape (dim,).
            k: number of nodes.
            where: required metadata values.
        """
        wanted = [MetadataFilter(key=key, value=value) for key, value in (where or {}).items()]
        query = VectorStoreQuery(query_embedding=vector.tolist(), similarity_top_k=k)
        query.filters = MetadataFilters(filters=[*wanted]) if wanted else None
        result = self._store.query(query)
        nodes = result.nodes or []
        scores = result.similarities or [1 - place / len(nodes) for place in range(len(nodes))]
        passages = [passage for node in nodes if (passage := passage_of(node)) is not None]
        return [replace(passage, score=float(score)) for passage, score in zip(passages, scores, strict=True)]

    def keyword_search(self, question: str, k: int, where: RequiredValues | None = None) -> list[Passage]:
        """Return nothing: a vector store has no keyword search."""
        return []
