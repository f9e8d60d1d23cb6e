"""A reranker as a LangChain document compressor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from langchain_core.callbacks import Callbacks
from langchain_core.documents import Document
from langchain_core.documents.compressor import BaseDocumentCompressor
from pydantic import BaseModel, ConfigDict, Field, SkipValidation

from antiphon.integrations.langchain.documents import SCORE, passages_of
from antiphon.integrations.pickling import check_picklable, memo_sharing
from antiphon.retrieval import Reranker


class AntiphonReranker(BaseDocumentCompressor):
    """Reranks documents and keeps the best; returns copies with the score in their metadata (``relevance_score``).

    Attributes:
        reranker: the reranker.
        top_n: number of documents to keep; None keeps all.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    reranker: SkipValidation[Reranker]
    top_n: int | None = Field(default=None, ge=1)

    def __getstate__(self) -> dict[Any, Any]:
        check_picklable(self.reranker, self, "AntiphonReranker(reranker=...)")
        return super().__getstate__()

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return BaseModel.__deepcopy__(self, memo_sharing(self.reranker, memo))

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """Return the best documents, best first. See `BaseDocumentCompressor.compress_documents`."""
        passages = passages_of(documents, "documents")
        places = [replace(passage, id=str(place)) for place, passage in enumerate(passages)]
        ranked = self.reranker.rerank(query, places)[: self.top_n]
        return [_scored(documents[int(passage.id)], passage.score) for passage in ranked]


def _scored(document: Document, score: float | None) -> Document:
    return document.model_copy(update={"metadata": {**document.metadata, SCORE: score}})
