"""A retriever of LangChain that is Antiphon's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import BaseModel, ConfigDict, SkipValidation

from antiphon.integrations.langchain.documents import document_of
from antiphon.integrations.pickled import check_picklable, shared
from antiphon.pipelines import Searcher
from antiphon.retrieval import Retriever


class AntiphonRetriever(BaseRetriever):
    """Finds the ``k`` best passages of an index: embedded, searched and reranked. A call may ask for another ``k``.

    A document's metadata say where its text stands (``source``, ``start_index``) and how well it fits
    (``relevance_score``).
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    retriever: SkipValidation[Searcher]
    k: int = 5

    @classmethod
    def open(cls, folder: str | Path, *, k: int = 5, **settings: Any) -> AntiphonRetriever:
        """The retriever of an index in a folder; ``settings`` and errors are those of `Retriever.open`."""
        return cls(retriever=Retriever.open(folder, **settings), k=k)

    def __getstate__(self) -> dict[Any, Any]:
        check_picklable(self.retriever, self, "AntiphonRetriever.open(folder)")
        return super().__getstate__()

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return BaseModel.__deepcopy__(self, shared(self.retriever, memo))

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        found = self.retriever.search(query, self.k if k is None else k)
        return [document_of(passage) for passage in found]
