"""`Rag` as a LlamaIndex query engine."""

from __future__ import annotations

import asyncio
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.response.schema import RESPONSE_TYPE, StreamingResponse
from llama_index.core.callbacks import CallbackManager
from llama_index.core.prompts.mixin import PromptMixinType
from llama_index.core.schema import NodeWithScore, QueryBundle

from antiphon.accel import TextModel
from antiphon.integrations.llama_index.cited_engines import CitedResponse, CitedStreamingResponse
from antiphon.integrations.llama_index.engine_parts import rag_of
from antiphon.integrations.llama_index.llm import AntiphonLLM
from antiphon.integrations.llama_index.nodes import node_of
from antiphon.integrations.llama_index.retriever import AntiphonRetriever
from antiphon.pipelines import Rag, Searcher
from antiphon.pipelines.question import Question


class AntiphonQueryEngine(BaseQueryEngine):
    """Answers like `Rag` and ``antiphon ask``, with the same passages, prompt and text. Responses have ``citations``.

    Args:
        retriever: an `AntiphonRetriever`, a `Retriever`, or a `Rag`. A `Rag` has its own language
            model: leave out ``llm``.
        llm: an `AntiphonLLM`, a language model, or a model's name; None: answers are quoted without
            a language model.
        **generation: options of `Rag.ask`.
    """

    def __init__(
        self,
        retriever: Rag | AntiphonRetriever | Searcher,
        llm: AntiphonLLM | TextModel | str | None = None,
        *,
        streaming: bool = False,
        callback_manager: CallbackManager | None = None,
        **generation: Any,
    ) -> None:
        self.rag, options = rag_of(retriever, llm)
        self.streaming = streaming
        self.generation = options | generation
        super().__init__(callback_manager)

    def retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Return the nodes that the answer is based on, best first."""
        question, where = Question(query_bundle.query_str), self.generation.get("where")
        return [node_of(passage) for passage in self.rag.retrieve(question, where=where)]

    def _get_prompt_modules(self) -> PromptMixinType:
        return {}

    def _query(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        stream = self.rag.stream(query_bundle.query_str, **self.generation)
        nodes = [node_of(passage) for passage in stream.passages]
        response: CitedStreamingResponse | CitedResponse
        if self.streaming:
            response = CitedStreamingResponse(StreamingResponse(stream, nodes))  # type: ignore[arg-type]
        else:
            response = CitedResponse(stream.to_end().answer.text, nodes)
        response.num_marked = stream.plan.num_marked
        return response

    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        return await asyncio.to_thread(self._query, query_bundle)
