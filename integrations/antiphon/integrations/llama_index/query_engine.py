"""`Rag` as a LlamaIndex query engine, and the `Rag` of an engine's parts."""

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
from antiphon.integrations.llama_index.llm import AntiphonLLM
from antiphon.integrations.llama_index.nodes import node_of
from antiphon.integrations.llama_index.retriever import AntiphonRetriever
from antiphon.pipelines import Rag, Searcher
from antiphon.pipelines.question import Question


def rag_of(
    retriever: Rag | AntiphonRetriever | Searcher, llm: AntiphonLLM | TextModel | str | None
) -> tuple[Rag, dict[str, Any]]:
    """Make a `Rag` from a retriever and an LLM; return it with those fields of both that are options of `Rag.ask`.

    Args:
        retriever: a retriever, or a `Rag`.
        llm: an LLM, a language model or a model's name. None: the language model of the `Rag`; if
            ``retriever`` is not a `Rag`, an `ExtractiveModel`.

    Raises:
        TypeError: ``retriever`` is another LlamaIndex retriever, or is a `Rag` although an LLM is
            given.
    """
    if isinstance(retriever, Rag):
        if llm is not None:
            raise TypeError("The Rag has a language model already; pass its retriever, or leave out llm.")
        return retriever, {}
    searcher, k, options = retriever, 5, dict[str, Any]()
    if isinstance(retriever, AntiphonRetriever):
        searcher, k = retriever.searcher, retriever.k
        options = {"where": retriever.where} if retriever.where else {}
    if not hasattr(searcher, "search"):
        raise TypeError(
            f"The retriever is a {type(retriever).__name__}; give an AntiphonRetriever, a Retriever or a Rag."
        )
    if isinstance(llm, AntiphonLLM):
        return Rag(searcher, llm.language_model, k=k), {**options, **llm.stream_options()}
    return Rag(searcher, llm, k=k), options


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
