"""A vector store of LangChain over Antiphon's vector indexes, and its way to an index folder and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from threading import RLock
from typing import Any
from uuid import uuid4

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore
from langchain_core.vectorstores.utils import maximal_marginal_relevance

from antiphon.integrations.langchain.documents import document_of, passages_of
from antiphon.integrations.langchain.embeddings import AntiphonEmbeddings
from antiphon.retrieval import Embedder, Retriever, VectorIndex, index_passages, read_store, vector_index
from antiphon.retrieval.vectors import Vectors, normalized

Filter = Mapping[str, Any] | Callable[[Document], bool]
"""Which documents may be found: those whose metadata have these values, or those of which a function says so."""


class AntiphonVectorStore(VectorStore):
    """Documents in memory, found by the cosine of their vectors: exactly, and with a filter among the rest.

    Scores are cosines, higher is better. A document that is added under an id that is there replaces it. `save` makes
    an index folder that everything else of Antiphon opens, `open` reads one. Safe under threads.
    """

    def __init__(self, embedding: Embeddings) -> None:
        self._embedding = embedding
        self._documents: dict[str, Document] = {}
        self._vectors: dict[str, Vectors] = {}
        self._index: tuple[VectorIndex, list[str]] | None = None  # made when first searched, dropped by every change
        self._lock = RLock()

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> AntiphonVectorStore:
        """A store of these texts."""
        store = cls(embedding, **kwargs)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    @classmethod
    def open(cls, folder: str | Path, *, embedder: Embedder | None = None) -> AntiphonVectorStore:
        """The passages of an index folder; ``embedder`` and errors are those of `Retriever.open`."""
        store = cls(AntiphonEmbeddings(Retriever.open(folder, reranker=None, embedder=embedder).embedder))
        saved = read_store(folder)
        store._put([document_of(passage) for passage in saved.passages], saved.vectors)
        return store

    def save(self, folder: str | Path) -> None:
        """Write an index folder, all of it or nothing; what lay there is replaced, and unchanged texts are reused.

        Raises:
            TypeError: the embeddings are not `AntiphonEmbeddings`, so that an index could not name them.
            ValueError: there is no document, or the folder holds other things than an index.
        """
        if not isinstance(self._embedding, AntiphonEmbeddings):
            kind = type(self._embedding).__name__
            raise TypeError(f"The embeddings are {kind}; an index names its embedder: make the store with one of ours.")
        with self._lock:
            passages = passages_of(self._documents.values(), "documents")
        index_passages(passages, folder, self._embedding.embedder)

    @property
    def embeddings(self) -> Embeddings:
        """What makes the vectors."""
        return self._embedding

    def __len__(self) -> int:
        return len(self._documents)

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Add texts, or replace those whose ids are there; returns the ids, new ones where none are given.

        Raises:
            ValueError: there are not as many metadatas or ids as texts.
            TypeError: there is no option of a name.
        """
        if kwargs:
            raise TypeError(f"There is no option {min(kwargs)!r}; add_texts takes metadatas and ids.")
        texts = list(texts)
        for name, given in (("metadatas", metadatas), ("ids", ids)):
            if given is not None and len(given) != len(texts):
                raise ValueError(f"There are {len(texts)} texts and {len(given)} {name}; each text needs one.")
        documents = [
            Document(page_content=text, metadata=dict(metadata), id=identifier or uuid4().hex)
            for text, metadata, identifier in zip(
                texts, metadatas or [{}] * len(texts), ids or [None] * len(texts), strict=True
            )
        ]
        if documents:
            self._put(documents, normalized(np.array(self._embedding.embed_documents(texts), np.float32)))
        return [str(document.id) for document in documents]

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Remove the documents of these ids, all without any; ids that are not there do no harm."""
        with self._lock:
            for identifier in list(self._documents) if ids is None else ids:
                self._documents.pop(identifier, None)
                self._vectors.pop(identifier, None)
            self._index = None
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The documents of these ids that are there."""
        with self._lock:
            return [self._documents[each].model_copy(deep=True) for each in ids if each in self._documents]

    def similarity_search(
        self, query: str, k: int = 4, *, filter: Filter | None = None, **kwargs: Any
    ) -> list[Document]:
        """The ``k`` nearest documents, best first."""
        return [document for document, _ in self.similarity_search_with_score(query, k, filter=filter, **kwargs)]

    def similarity_search_with_score(
        self, query: str, k: int = 4, *, filter: Filter | None = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """The ``k`` nearest documents and their cosines, best first."""
        return self._nearest(self._embedding.embed_query(query), k, filter)

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, *, filter: Filter | None = None, **kwargs: Any
    ) -> list[Document]:
        """The ``k`` documents nearest to a vector, best first."""
        return [document for document, _ in self._nearest(embedding, k, filter)]

    def max_marginal_relevance_search(
        self,
        query: str,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        *,
        filter: Filter | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        """``k`` of the ``fetch_k`` nearest documents, near to the query and unlike each other."""
        vector = self._embedding.embed_query(query)
        found = self._nearest(vector, fetch_k, filter)
        if not found:
            return []
        with self._lock:
            near = [self._vectors[str(document.id)] for document, _ in found]
        chosen = maximal_marginal_relevance(np.array(vector, np.float32), near, lambda_mult, k)
        return [found[place][0] for place in chosen]

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return lambda cosine: min(max(cosine, 0.0), 1.0)

    def _put(self, documents: Sequence[Document], vectors: Vectors) -> None:
        with self._lock:
            for document, vector in zip(documents, vectors, strict=True):
                self._documents[str(document.id)] = document
                self._vectors[str(document.id)] = vector
            self._index = None

    def _nearest(self, vector: Sequence[float], k: int, wanted: Filter | None) -> list[tuple[Document, float]]:
        with self._lock:
            index, ids = self._searchable(wanted)
            if index is None:
                return []
            hits = index.search(normalized(np.array([vector], np.float32)), k)[0]
            found = [self._documents[ids[row]].model_copy(deep=True) for row in hits.rows]
        return list(zip(found, map(float, hits.scores), strict=True))

    def _searchable(self, wanted: Filter | None) -> tuple[VectorIndex | None, list[str]]:
        """The documents that may be found: all of them in an index that is kept, some in one of their own."""
        if wanted is None and self._index is not None:
            return self._index
        ids = [each for each, document in self._documents.items() if wanted is None or _is_wanted(document, wanted)]
        if not ids:
            return None, ids
        index = vector_index(np.stack([self._vectors[each] for each in ids]))
        if wanted is None:
            self._index = index, ids
        return index, ids


def _is_wanted(document: Document, wanted: Filter) -> bool:
    if callable(wanted):
        return wanted(document)
    return all(key in document.metadata and document.metadata[key] == value for key, value in wanted.items())
