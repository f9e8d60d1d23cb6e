"""A reranker as a LlamaIndex node postprocessor."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle
from pydantic import ConfigDict, Field, SkipValidation

from antiphon.integrations.llama_index.nodes import passages_of
from antiphon.integrations.pickling import SharedPart
from antiphon.retrieval import Reranker
from antiphon.retrieval.rerankers.by_name import bundled_reranker

_dispatcher = get_dispatcher(__name__)


class AntiphonRerank(SharedPart, BaseNodePostprocessor):
    """Reranks nodes and returns the best with new scores. The scores of the given nodes do not change.

    Attributes:
        reranker: the reranker; by default the bundled one, which needs no index.
        top_n: number of nodes to keep; None keeps all.
    """

    shared_part: ClassVar = "reranker"
    pickling_remedy: ClassVar = "AntiphonRerank(reranker=...)"
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    reranker: SkipValidation[Reranker] = Field(default_factory=bundled_reranker, exclude=True)
    top_n: int | None = Field(default=None, ge=1)

    @classmethod
    def class_name(cls) -> str:
        """The name under which LlamaIndex saves the class."""
        return "AntiphonRerank"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise ValueError("Reranking needs a query; pass query_str= or query_bundle=.")
        _dispatcher.event(
            ReRankStartEvent(
                query=query_bundle, nodes=nodes, top_n=self.top_n or len(nodes), model_name=self.reranker.name
            )
        )
        passages = [replace(each, id=str(place)) for place, each in enumerate(passages_of(nodes, "nodes"))]
        ranked = self.reranker.rerank(query_bundle.query_str, passages)[: self.top_n]
        found = [NodeWithScore(node=nodes[int(passage.id)].node, score=passage.score) for passage in ranked]
        _dispatcher.event(ReRankEndEvent(nodes=found))
        return found
