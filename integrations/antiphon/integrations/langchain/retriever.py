"""Antiphon's retriever as a LangChain retriever."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.indexing.base import DeleteResponse, DocumentIndex, UpsertResponse
from pydantic import ConfigDict, SkipValidation, field_validator

from antiphon.integrations.langchain.documents import document_of, passages_of
from antiphon.integrations.pickling import SharedPart
from antiphon.pipelines import Searcher
from antiphon.retrieval import Collection, Retriever
from antiphon.retrieval.filters import parse_filter


class AntiphonRetriever(SharedPart, DocumentIndex):
    """Searches an index: embed, search, rerank. LangChain's indexing API can change the index.

    A document's metadata contain its location (``source``, ``start_index``) and its score (``relevance_score``). A call
    may override ``k`` and ``where``: ``retriever.invoke(question, where={"source": "keys.md"})``.

    Attributes:
        retriever: the retriever that searches.
        k: number of documents.
        where: a `MetadataFilter`, or a structured query of LangChain, that every document must
            match; ``source`` is the document's name.
    """

    shared_part: ClassVar = "retriever"
    pickling_remedy: ClassVar = "AntiphonRetriever.open(folder)"
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    retriever: SkipValidation[Searcher]
    k: int = 5
    where: Any = None

    @field_validator("where")
    @classmethod
    def _check_where(cls, where: Any) -> Any:
        parse_filter(where)
        return where

    @classmethod
    def open(cls, folder: str | Path, *, k: int = 5, where: Any = None, **settings: Any) -> AntiphonRetriever:
        """Open the index in a folder.

        Args:
            **settings: arguments of `Retriever.open`, which also describes the errors.
        """
        return cls(retriever=Retriever.open(folder, **settings), k=k, where=where)

    def upsert(self, items: Sequence[Document], /, **kwargs: Any) -> UpsertResponse:
        """Insert documents, or replace the documents with the same ids; see `DocumentIndex.upsert`.

        Each document becomes one passage, so split long documents first.

        Args:
            items: the documents. A document without an id gets an id computed from its text and
                source.
            **kwargs: ignored.

        Raises:
            TypeError: the retriever or its index is read-only.
        """
        passages = passages_of(items, "items")
        self._changeable().add(passages)
        return UpsertResponse(succeeded=[passage.id for passage in passages], failed=[])

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> DeleteResponse:
        """Delete documents by their ids; see `DocumentIndex.delete`.

        Raises:
            ValueError: ``ids`` is None.
            TypeError: the retriever or its index is read-only.
        """
        if ids is None:
            raise ValueError("ids is None; give the ids of the documents to delete.")
        known = [str(document.id) for document in self.get(ids)]
        self._changeable().remove(known)
        return DeleteResponse(num_deleted=len(known), succeeded=known, num_failed=0, failed=[])

    def get(self, ids: Sequence[str], /, **kwargs: Any) -> list[Document]:
        """Return the documents with these ids; see `DocumentIndex.get`."""
        index: Any = self._changeable().index
        return [document_of(passage) for each in dict.fromkeys(ids) if (passage := index.passage(each)) is not None]

    def _changeable(self) -> Retriever:
        if not isinstance(self.retriever, Retriever) or not isinstance(self.retriever.index, Collection):
            raise TypeError(f"The {type(self.retriever).__name__} is read-only; change its documents where they are.")
        return self.retriever

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        where: Any = None,
    ) -> list[Document]:
        wanted = self.where if where is None else where
        narrowed: dict[str, Any] = {"where": wanted} if wanted else {}  # a custom searcher may not support filters
        found = self.retriever.search(query, self.k if k is None else k, **narrowed)
        return [document_of(passage) for passage in found]
