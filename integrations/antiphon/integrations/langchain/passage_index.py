"""Any vector store of LangChain as a place where Antiphon's retriever searches. Knows nothing of models."""

from __future__ import annotations

from dataclasses import replace

from langchain_core.vectorstores import VectorStore

from antiphon.integrations.langchain.documents import passage_of
from antiphon.retrieval import Passage, Where
from antiphon.retrieval.vectors import Vectors


class VectorStorePassages:
    """The documents of a vector store as passages, found by the vectors of the retriever's own embedder.

    That embedder must be the one that the store was filled with: a store does not say which that was. Stores disagree
    on whether a score rises or falls with nearness, so a passage's score is its rank: from 1 for the first down to 0.
    Words are not searched, and a filter is handed to the store as its ``filter``.
    """

    def __init__(self, store: VectorStore) -> None:
        self._store = store

    def nearest(self, vector: Vectors, k: int, where: Where | None = None) -> list[Passage]:
        """The ``k`` nearest documents, best first, with scores by rank."""
        options = {"filter": dict(where)} if where else {}
        documents = self._store.similarity_search_by_vector(vector.tolist(), k=k, **options)
        passages = [passage for document in documents if (passage := passage_of(document)) is not None]
        return [replace(passage, score=1 - place / len(passages)) for place, passage in enumerate(passages)]

    def matching(self, question: str, k: int, where: Where | None = None) -> list[Passage]:
        """Nothing: a vector store knows no words."""
        return []
