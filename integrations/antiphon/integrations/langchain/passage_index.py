"""A vector store of LangChain as a place where Antiphon's retriever searches. Knows nothing of models."""

from __future__ import annotations

from dataclasses import replace

from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStore

from antiphon.integrations.langchain.documents import passage_of
from antiphon.retrieval import MetadataFilter, Passage
from antiphon.retrieval.vector_index.flat import Vectors


class VectorStorePassages:
    """The documents of a vector store as passages, found by the vectors of the retriever's own embedder.

    That embedder must be the one that the store was filled with: a store does not say which that was. Stores disagree
    on whether a score rises or falls with nearness, so a passage's score is its rank: 1 for the first of n,
    1/n for the last. Words are not searched. The store must have ``similarity_search_by_vector``.

    A filter is handed on as the store's ``filter``, a dictionary of texts by name, with ``source`` among them: stores
    that compare metadata by such a dictionary take it, such as Chroma (one condition at a time). `InMemoryVectorStore`
    wants a function, and others a language of their own: they cannot be searched with ``where``.

    Raises:
        TypeError: the store is not searched by vector.
    """

    def __init__(self, store: VectorStore) -> None:
        if type(store).similarity_search_by_vector is VectorStore.similarity_search_by_vector:
            raise TypeError(
                f"{type(store).__name__} is not searched by vector (it has no similarity_search_by_vector of its own); "
                "give a store that is, or put its documents into an index of antiphon."
            )
        self._store = store
        self._search = store.similarity_search_by_vector

    def vector_search(self, vector: Vectors, k: int, where: MetadataFilter | None = None) -> list[Passage]:
        """The ``k`` nearest documents, best first, with scores by rank.

        Raises:
            ValueError: the store does not take the filter.
        """
        documents = self._filtered(vector, k, where) if where else self._search(vector.tolist(), k=k)
        passages = [passage for document in documents if (passage := passage_of(document)) is not None]
        return [replace(passage, score=1 - place / len(passages)) for place, passage in enumerate(passages)]

    def keyword_search(self, question: str, k: int, where: MetadataFilter | None = None) -> list[Passage]:
        """Nothing: a vector store knows no words."""
        return []

    def _filtered(self, vector: Vectors, k: int, where: MetadataFilter) -> list[Document]:
        conditions = dict(where)
        try:
            return self._search(vector.tolist(), k=k, filter=conditions)
        except (AttributeError, TypeError, ValueError) as error:  # whatever else it wants, it trips over a dictionary
            raise ValueError(
                f"{type(self._store).__name__} does not take the filter {conditions}, which is handed on as a "
                f"dictionary; search without where, or take a store that filters by one. ({error})"
            ) from error
