"""A LangChain vector store in memory that can be saved as an index folder and opened from one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore
from langchain_core.vectorstores.utils import maximal_marginal_relevance

from antiphon.integrations.langchain.documents import document_of, passages_of
from antiphon.integrations.langchain.embeddings import AntiphonEmbeddings
from antiphon.integrations.vector_table import VectorHit, VectorTable
from antiphon.retrieval import Embedder, Passage, Retriever, index_passages, read_index
from antiphon.retrieval.filters import matches, parse_filter

Filter = Mapping[str, Any] | Callable[[Document], bool]
"""Required metadata values, a `MetadataFilter` with operators, a structured query, or a predicate of documents."""


class AntiphonVectorStore(VectorStore):
    """Documents in memory with exact cosine search and filters; thread-safe.

    Scores are cosines, higher is better. Adding a document with an existing id replaces it. `save` writes an index
    folder that the rest of Antiphon can open, and `open` reads one.

    Args:
        embedding: embeds documents and queries.
    """

    def __init__(self, embedding: Embeddings) -> None:
        self._embedding = embedding
        self._table: VectorTable[Document] = VectorTable()

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
        """Create a store of texts.

        Args:
            texts: the documents' texts.
            embedding: embeds documents and queries.
            metadatas: one per text.
            ids: one per text; new ones by default.
            **kwargs: further constructor arguments.
        """
        store = cls(embedding, **kwargs)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    @classmethod
    def open(cls, folder: str | Path, *, embedder: Embedder | None = None) -> AntiphonVectorStore:
        """Open the passages of an index folder.

        Args:
            folder: the index folder.
            embedder: embeds queries; by default the one that the index names. Errors are those of `Retriever.open`.
        """
        store = cls(AntiphonEmbeddings(Retriever.open(folder, reranker=None, embedder=embedder).embedder))
        saved = read_index(folder)
        documents = [document_of(passage) for passage in saved.passages]
        vectors = np.asarray(saved.vectors, dtype=np.float32)  # large indexes store half precision
        store._table.put([str(document.id) for document in documents], documents, vectors)
        return store

    def save(self, folder: str | Path) -> None:
        """Write an index folder atomically; an existing index is replaced, and unchanged texts are not embedded again.

        Raises:
            TypeError: the embeddings are not `AntiphonEmbeddings`, so the index could not name them.
            ValueError: the store is empty, or the folder contains something else than an index.
        """
        if not isinstance(self._embedding, AntiphonEmbeddings):
            kind = type(self._embedding).__name__
            raise TypeError(f"The embeddings are {kind}; an index names its embedder: make the store with one of ours.")
        passages = passages_of([document for _, document in self._table.items()], "documents")
        index_passages(passages, folder, self._embedding.embedder)

    @property
    def embeddings(self) -> Embeddings:
        """The embeddings of documents and queries."""
        return self._embedding

    def __len__(self) -> int:
        return len(self._table)

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Add texts, replacing documents with the same ids.

        Args:
            texts: the documents' texts.
            metadatas: one per text.
            ids: one per text; new ones by default.
            **kwargs: none are supported.

        Returns:
            The ids.

        Raises:
            ValueError: the number of metadatas or ids differs from that of texts.
            TypeError: an option is unknown.
        """
        if kwargs:
            raise TypeError(f"Unknown option {min(kwargs)!r}; add_texts takes metadatas and ids.")
        texts = list(texts)
        for name, given in (("metadatas", metadatas), ("ids", ids)):
            if given is not None and len(given) != len(texts):
                raise ValueError(f"There are {len(texts)} texts and {len(given)} {name}; each text needs one.")
        owned = [identifier or uuid4().hex for identifier in ids or [""] * len(texts)]
        documents = [
            Document(page_content=text, metadata=dict(metadata), id=identifier)
            for text, metadata, identifier in zip(texts, metadatas or [{}] * len(texts), owned, strict=True)
        ]
        if documents:
            self._table.put(owned, documents, np.array(self._embedding.embed_documents(texts), np.float32))
        return owned

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Remove the documents with these ids, or all if ``ids`` is None; unknown ids are ignored."""
        self._table.remove([identifier for identifier, _ in self._table.items()] if ids is None else ids)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return the documents with these ids; unknown ids are ignored."""
        return [_copy(document) for document in self._table.get(ids)]

    def similarity_search(
        self, query: str, k: int = 4, *, filter: Filter | None = None, **kwargs: Any
    ) -> list[Document]:
        """Return the ``k`` nearest documents, best first. See `VectorStore.similarity_search`."""
        return [document for document, _ in self.similarity_search_with_score(query, k, filter=filter, **kwargs)]

    def similarity_search_with_score(
        self, query: str, k: int = 4, *, filter: Filter | None = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Return the ``k`` nearest documents and their cosines, best first."""
        found = self._nearest(self._embedding.embed_query(query), k, filter)
        return [(_copy(hit.item), hit.score) for hit in found]

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, *, filter: Filter | None = None, **kwargs: Any
    ) -> list[Document]:
        """Return the ``k`` documents nearest to a vector, best first."""
        return [_copy(hit.item) for hit in self._nearest(embedding, k, filter)]

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
        """Return ``k`` of the ``fetch_k`` nearest documents by maximal marginal relevance. See `VectorStore`.

        If ``k`` is above ``fetch_k``, the ``k`` nearest documents are ordered.
        """
        vector = self._embedding.embed_query(query)
        found = self._nearest(vector, max(fetch_k, k), filter)
        if not found:
            return []
        near = [hit.vector.tolist() for hit in found]
        chosen = maximal_marginal_relevance(np.array(vector, np.float32), near, lambda_mult, k)
        return [_copy(found[place].item) for place in chosen]

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return lambda cosine: min(max(cosine, 0.0), 1.0)

    def _nearest(self, vector: Sequence[float], k: int, wanted: Filter | None) -> list[VectorHit[Document]]:
        if wanted is None:
            return self._table.nearest(vector, k)
        is_wanted = _predicate(wanted)
        return self._table.nearest(vector, k, lambda _, document: is_wanted(document))


def _copy(document: Document) -> Document:
    """Copy a document, so that the caller may change it."""
    return document.model_copy(deep=True)


def _predicate(wanted: Filter) -> Callable[[Document], bool]:
    """Return the predicate of a filter; without operators, a field that is missing equals nothing."""
    if callable(wanted):
        return wanted
    if isinstance(wanted, Mapping) and not _has_operators(wanted):
        required = dict(wanted)
        return lambda document: all(
            key in document.metadata and document.metadata[key] == value for key, value in required.items()
        )
    condition = parse_filter(wanted)
    return lambda document: matches(
        condition, Passage("", "", str(document.metadata.get("source") or ""), 0, 0, None, document.metadata)
    )


def _has_operators(wanted: Mapping[str, Any]) -> bool:
    values = [value for value in wanted.values() if isinstance(value, Mapping)]
    return any(str(key).startswith("$") for mapping in (wanted, *values) for key in mapping)
