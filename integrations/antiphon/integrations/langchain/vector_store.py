"""A vector store of LangChain over Antiphon's vector indexes, and its way to an index folder and back."""

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
from antiphon.integrations.table import Found, Table
from antiphon.retrieval import Embedder, Retriever, index_passages, read_index

Filter = Mapping[str, Any] | Callable[[Document], bool]
"""Which documents may be found: those whose metadata have these values, or those of which a function says so."""


class AntiphonVectorStore(VectorStore):
    """Documents in memory, found by the cosine of their vectors: exactly, and with a filter among the rest.

    Scores are cosines, higher is better. A document that is added under an id that is there replaces it. `save` makes
    an index folder that everything else of Antiphon opens, `open` reads one. Safe under threads.
    """

    def __init__(self, embedding: Embeddings) -> None:
        self._embedding = embedding
        self._table: Table[Document] = Table()

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
        saved = read_index(folder)
        documents = [document_of(passage) for passage in saved.passages]
        vectors = np.asarray(saved.vectors, dtype=np.float32)  # large indexes keep half of the precision
        store._table.put([str(document.id) for document in documents], documents, vectors)
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
        passages = passages_of([document for _, document in self._table.items()], "documents")
        index_passages(passages, folder, self._embedding.embedder)

    @property
    def embeddings(self) -> Embeddings:
        """What makes the vectors."""
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
        owned = [identifier or uuid4().hex for identifier in ids or [""] * len(texts)]
        documents = [
            Document(page_content=text, metadata=dict(metadata), id=identifier)
            for text, metadata, identifier in zip(texts, metadatas or [{}] * len(texts), owned, strict=True)
        ]
        if documents:
            self._table.put(owned, documents, np.array(self._embedding.embed_documents(texts), np.float32))
        return owned

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Remove the documents of these ids, all without any; ids that are not there do no harm."""
        self._table.remove([identifier for identifier, _ in self._table.items()] if ids is None else ids)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The documents of these ids that are there."""
        return [_copy(document) for document in self._table.get(ids)]

    def similarity_search(
        self, query: str, k: int = 4, *, filter: Filter | None = None, **kwargs: Any
    ) -> list[Document]:
        """The ``k`` nearest documents, best first."""
        return [document for document, _ in self.similarity_search_with_score(query, k, filter=filter, **kwargs)]

    def similarity_search_with_score(
        self, query: str, k: int = 4, *, filter: Filter | None = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """The ``k`` nearest documents and their cosines, best first."""
        found = self._nearest(self._embedding.embed_query(query), k, filter)
        return [(_copy(hit.thing), hit.score) for hit in found]

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, *, filter: Filter | None = None, **kwargs: Any
    ) -> list[Document]:
        """The ``k`` documents nearest to a vector, best first."""
        return [_copy(hit.thing) for hit in self._nearest(embedding, k, filter)]

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
        near = [hit.vector.tolist() for hit in found]
        chosen = maximal_marginal_relevance(np.array(vector, np.float32), near, lambda_mult, k)
        return [_copy(found[place].thing) for place in chosen]

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return lambda cosine: min(max(cosine, 0.0), 1.0)

    def _nearest(self, vector: Sequence[float], k: int, wanted: Filter | None) -> list[Found[Document]]:
        if wanted is None:
            return self._table.nearest(vector, k)
        return self._table.nearest(vector, k, lambda _, document: _is_wanted(document, wanted))


def _copy(document: Document) -> Document:
    """A document for its finder to do with as he likes; the store's own stays as it is."""
    return document.model_copy(deep=True)


def _is_wanted(document: Document, wanted: Filter) -> bool:
    if callable(wanted):
        return wanted(document)
    return all(key in document.metadata and document.metadata[key] == value for key, value in wanted.items())
