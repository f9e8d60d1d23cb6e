"""Antiphon's retriever as a LangChain retriever."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict, SkipValidation, field_validator

from antiphon.integrations.langchain.documents import document_of
from antiphon.integrations.pickling import SharedPart
from antiphon.pipelines import Searcher
from antiphon.retrieval import Retriever
from antiphon.retrieval.filters import parse_filter


class AntiphonRetriever(SharedPart, BaseRetriever):
    """Searches an index: embed, search, rerank.

    A document's metadata contain its location (``source``, ``start_index``) and its score (``relevance_score``). A call
    may override ``k`` and ``where``: ``retriever.invoke(question, where={"source": "keys.md"})``.

    Attributes:
        retriever: the retriever that searches.
        k: number of documents.
        where: only documents that match this `MetadataFilter` or structured query of LangChain; ``source`` is the
            document's name.
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
            **settings: arguments of `Retriever.open`, whose errors it raises.
        """
        return cls(retriever=Retriever.open(folder, **settings), k=k, where=where)

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
