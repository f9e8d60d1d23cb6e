"""A LangChain vector store as the index of Antiphon's retriever."""

from __future__ import annotations

from dataclasses import replace

from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStore

from antiphon.integrations.langchain.documents import passage_of
from antiphon.retrieval import MetadataFilter, Passage
from antiphon.retrieval.filters import parse_filter
from antiphon.retrieval.vector_index.flat import Vectors


class VectorStorePassages:
    """Searches a vector store with the vectors of the retriever's embedder; there is no keyword search.

    The store must have been filled with the same embedder; this cannot be checked. Stores disagree
    on whether nearer documents have higher scores. So the score of a passage is computed from its
    rank: of n passages, the first has the score 1 and the last 1/n. `Retriever` embeds the passages
    that it returns, and computes their cosines.

    The filter ``where`` is passed to the store as ``filter``, a dictionary of metadata values,
    including ``source``. Some stores accept such a dictionary; Chroma accepts a dictionary with one
    condition. `InMemoryVectorStore` needs a function, and other stores need a filter in their own
    language; these stores do not support ``where``.

    Raises:
        TypeError: the store cannot be searched by vector.
    """

    has_cosines = False

    def __init__(self, store: VectorStore) -> None:
        if type(store).similarity_search_by_vector is VectorStore.similarity_search_by_vector:
            raise TypeError(
                f"{type(store).__name__} cannot be searched by vector (it lacks similarity_search_by_vector); "
                "use another store, or index its documents with antiphon."
            )
        self._store = store
        self._search = store.similarity_search_by_vector

    def vector_search(self, vector: Vectors, k: int, where: MetadataFilter | None = None) -> list[Passage]:
        """Return the ``k`` nearest documents, best first.

        Args:
            vector: the query, shape (dim,).

        Raises:
            ValueError: the store does not accept the filter.
        """
        documents = self._filtered(vector, k, where) if where else self._search(vector.tolist(), k=k)
        passages = [passage for document in documents if (passage := passage_of(document)) is not None]
        return [replace(passage, score=1 - place / len(passages)) for place, passage in enumerate(passages)]

    def keyword_search(self, question: str, k: int, where: MetadataFilter | None = None) -> list[Passage]:
        """Return nothing: a vector store has no keyword search."""
        return []

    def _filtered(self, vector: Vectors, k: int, where: MetadataFilter) -> list[Document]:
        parse_filter(where)
        conditions = dict(where)
        try:
            return self._search(vector.tolist(), k=k, filter=conditions)
        except (AttributeError, TypeError, ValueError) as error:  # the store needs another kind of filter
            raise ValueError(
                f"{type(self._store).__name__} does not accept the filter {conditions}, which is passed as a "
                f"dictionary; search without where, or use a store with such filters. ({error})"
            ) from error
