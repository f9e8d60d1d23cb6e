"""A reranker as a LangChain document compressor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from langchain_core.callbacks import Callbacks
from langchain_core.documents import Document
from langchain_core.documents.compressor import BaseDocumentCompressor
from pydantic import ConfigDict, Field, SkipValidation

from antiphon.integrations.langchain.documents import SCORE, passages_of
from antiphon.integrations.pickling import SharedPart
from antiphon.retrieval import Reranker
from antiphon.retrieval.rerankers.by_name import bundled_reranker


class AntiphonReranker(SharedPart, BaseDocumentCompressor):
    """Reranks documents and keeps the best; returns copies with the score in their metadata (``relevance_score``).

    Attributes:
        reranker: the reranker; by default the bundled one, which needs no index.
        top_n: number of documents to keep; None keeps all.
    """

    shared_part: ClassVar = "reranker"
    pickling_remedy: ClassVar = "AntiphonReranker(reranker=...)"
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    reranker: SkipValidation[Reranker] = Field(default_factory=bundled_reranker)
    top_n: int | None = Field(default=None, ge=1)

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """Return the best documents, best first. See `BaseDocumentCompressor.compress_documents`."""
        passages = passages_of(documents, "documents")
        places = [replace(passage, id=str(place)) for place, passage in enumerate(passages)]
        ranked = self.reranker.rerank(query, places)[: self.top_n]
        scored = [(documents[int(passage.id)], passage.score) for passage in ranked]
        return [each.model_copy(update={"metadata": {**each.metadata, SCORE: score}}) for each, score in scored]
