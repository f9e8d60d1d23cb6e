"""Any vector store of LlamaIndex as a place where Antiphon's retriever searches. Knows nothing of models."""

from __future__ import annotations

from dataclasses import replace

from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
)

from antiphon.integrations.llama_index.nodes import passage_of
from antiphon.retrieval import MetadataFilter, Passage
from antiphon.retrieval.vector_index.flat import Vectors


class VectorStorePassages:
    """The nodes of a vector store as passages, found by the vectors of the retriever's own embedder.

    That embedder must be the one that the store was filled with: a store does not say which that was. The store must
    keep its nodes' text. Words are not searched.
    """

    def __init__(self, store: BasePydanticVectorStore) -> None:
        if not store.stores_text:
            raise ValueError(f"{type(store).__name__} keeps vectors only; a store that keeps its texts is needed.")
        self._store = store

    def vector_search(self, vector: Vectors, k: int, where: MetadataFilter | None = None) -> list[Passage]:
        """The ``k`` nearest nodes, best first, with the store's similarities."""
        wanted = [MetadataFilter(key=key, value=value) for key, value in (where or {}).items()]
        query = VectorStoreQuery(query_embedding=vector.tolist(), similarity_top_k=k)
        query.filters = MetadataFilters(filters=[*wanted]) if wanted else None
        result = self._store.query(query)
        nodes = result.nodes or []
        scores = result.similarities or [1 - place / len(nodes) for place in range(len(nodes))]
        passages = [passage for node in nodes if (passage := passage_of(node)) is not None]
        return [replace(passage, score=float(score)) for passage, score in zip(passages, scores, strict=True)]

    def keyword_search(self, question: str, k: int, where: MetadataFilter | None = None) -> list[Passage]:
        """Nothing: a vector store knows no words."""
        return []
