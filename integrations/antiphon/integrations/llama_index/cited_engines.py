"""Query and chat engines whose responses cite their source nodes. Nothing is kept between responses."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from dataclasses import fields
from typing import Any, overload

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.llms.types import ChatMessage, CitationBlock
from llama_index.core.base.response.schema import RESPONSE_TYPE, AsyncStreamingResponse, Response, StreamingResponse
from llama_index.core.chat_engine.types import AgentChatResponse, BaseChatEngine, StreamingAgentChatResponse
from llama_index.core.prompts.mixin import PromptMixinType
from llama_index.core.schema import NodeWithScore, QueryBundle

from antiphon.integrations.llama_index.nodes import passage_of
from antiphon.integrations.llama_index.outputs import citation_blocks


def citations_of(text: str, nodes: Sequence[NodeWithScore], num_marked: int = 0) -> list[CitationBlock]:
    """Return citations for spans that were copied from nodes, and for markers of the first ``num_marked`` nodes."""
    return citation_blocks(text, [passage for node in nodes if (passage := passage_of(node)) is not None], num_marked)


@overload
def with_citations(engine: BaseQueryEngine) -> CitingQueryEngine: ...
@overload
def with_citations(engine: BaseChatEngine) -> CitingChatEngine: ...
def with_citations(engine: BaseQueryEngine | BaseChatEngine) -> CitingQueryEngine | CitingChatEngine:
    """Wrap an engine so that its responses have ``citations`` of their source nodes; a stream has them at its end.

    Raises:
        TypeError: the argument is neither a query engine nor a chat engine.
    """
    if isinstance(engine, BaseQueryEngine):
        return CitingQueryEngine(engine)
    if isinstance(engine, BaseChatEngine):
        return CitingChatEngine(engine)
    raise TypeError(f"The engine is {type(engine).__name__}; give a query engine or a chat engine of LlamaIndex.")


class _Cited:
    """Adds citations to a response.

    Attributes:
        num_marked: the response can cite the first ``num_marked`` source nodes by markers such as
            ``[1]``.
    """

    num_marked = 0
    response: Any
    source_nodes: list[NodeWithScore]

    @property
    def citations(self) -> list[CitationBlock]:
        """The spans of the response that were copied from a node."""
        return citations_of(self.response or "", self.source_nodes, self.num_marked)


class _CitedStream:
    """Collects the text of a streaming response, and adds citations once it has ended.

    Attributes:
        num_marked: as in `_Cited`.
    """

    num_marked = 0
    source_nodes: list[NodeWithScore]
    _text: str | None = None

    @property
    def citations(self) -> list[CitationBlock]:
        """The spans of the response that were copied from a node.

        Raises:
            RuntimeError: the stream has not ended.
        """
        if self._text is None:
            raise RuntimeError("The stream has not ended; read it to its end to get its citations.")
        return citations_of(self._text, self.source_nodes, self.num_marked)

    def _collect(self, pieces: Any) -> Generator[str, None, None]:
        text = ""
        for piece in pieces:
            text += piece
            yield piece
        self._text = text

    async def _acollect(self, pieces: Any) -> AsyncGenerator[str, None]:
        text = ""
        async for piece in pieces:
            text += piece
            yield piece
        self._text = text


class CitedResponse(_Cited, Response):
    """A response with citations of its source nodes."""


class CitedChatResponse(_Cited, AgentChatResponse):
    """A chat response with citations of its source nodes."""


class CitedStreamingResponse(_CitedStream, StreamingResponse):
    """A streaming response with citations of its source nodes once it has ended."""

    def __init__(self, response: StreamingResponse) -> None:
        super().__init__(**_fields(response))
        self.response_gen = self._collect(response.response_gen)


class CitedAsyncStreamingResponse(_CitedStream, AsyncStreamingResponse):
    """An asynchronous streaming response with citations of its source nodes once it has ended."""

    def __init__(self, response: AsyncStreamingResponse) -> None:
        super().__init__(**_fields(response))
        self.response_gen = self._acollect(response.response_gen)


class CitedChatStream(_CitedStream):
    """A streaming chat response with citations once it has ended; otherwise it behaves as the wrapped response."""

    def __init__(self, response: StreamingAgentChatResponse) -> None:
        self._response = response

    def __getattr__(self, name: str) -> Any:
        return getattr(self._response, name)

    @property
    def response_gen(self) -> Generator[str, None, None]:
        """The pieces of the text, as they are generated."""
        return self._collect(self._response.response_gen)

    def async_response_gen(self) -> AsyncGenerator[str, None]:
        """Yield the pieces of the text asynchronously."""
        return self._acollect(self._response.async_response_gen())


class CitingQueryEngine(BaseQueryEngine):
    """A query engine with citations in its responses; otherwise it behaves as the wrapped engine."""

    def __init__(self, engine: BaseQueryEngine) -> None:
        self.engine = engine
        super().__init__(engine.callback_manager)

    def retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Return the nodes that the engine retrieves for a question."""
        return self.engine.retrieve(query_bundle)

    def _get_prompt_modules(self) -> PromptMixinType:
        return {"engine": self.engine}

    def _query(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        return _cited(self.engine.query(query_bundle))

    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        return _cited(await self.engine.aquery(query_bundle))


class CitingChatEngine(BaseChatEngine):
    """A chat engine with citations in its responses; otherwise it behaves as the wrapped engine."""

    def __init__(self, engine: BaseChatEngine) -> None:
        self.engine = engine

    def reset(self) -> None:
        """Clear the conversation."""
        self.engine.reset()

    @property
    def chat_history(self) -> list[ChatMessage]:
        """The messages of the conversation."""
        return self.engine.chat_history

    def chat(self, message: str, chat_history: list[ChatMessage] | None = None) -> Any:
        """Answer a message, with citations. See `BaseChatEngine`."""
        return CitedChatResponse(**_fields(self.engine.chat(message, chat_history)))

    async def achat(self, message: str, chat_history: list[ChatMessage] | None = None) -> Any:
        """Answer a message, with citations. See `BaseChatEngine`."""
        return CitedChatResponse(**_fields(await self.engine.achat(message, chat_history)))

    def stream_chat(self, message: str, chat_history: list[ChatMessage] | None = None) -> Any:
        """Stream the answer to a message, with citations at the end. See `BaseChatEngine`."""
        return CitedChatStream(self.engine.stream_chat(message, chat_history))

    async def astream_chat(self, message: str, chat_history: list[ChatMessage] | None = None) -> Any:
        """Stream the answer to a message, with citations at the end. See `BaseChatEngine`."""
        return CitedChatStream(await self.engine.astream_chat(message, chat_history))


def _cited(response: RESPONSE_TYPE) -> RESPONSE_TYPE:
    if isinstance(response, Response):
        return CitedResponse(**_fields(response))
    if isinstance(response, StreamingResponse):
        return CitedStreamingResponse(response)
    if isinstance(response, AsyncStreamingResponse):
        return CitedAsyncStreamingResponse(response)
    return response  # a pydantic object has no text to cite


def _fields(response: Any) -> dict[str, Any]:
    return {field.name: getattr(response, field.name) for field in fields(response)}
