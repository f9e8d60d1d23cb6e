"""`Rag` as a LlamaIndex chat engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, MessageRole
from llama_index.core.chat_engine.types import BaseChatEngine, StreamingAgentChatResponse

from antiphon.accel import TextModel
from antiphon.integrations.llama_index.chat_messages import chat_messages
from antiphon.integrations.llama_index.cited_engines import CitedChatResponse, CitedChatStream
from antiphon.integrations.llama_index.llm import AntiphonLLM
from antiphon.integrations.llama_index.nodes import node_of
from antiphon.integrations.llama_index.query_engine import rag_of
from antiphon.integrations.llama_index.retriever import AntiphonRetriever
from antiphon.integrations.model_call import read_in_thread
from antiphon.pipelines import Answer, AnswerStream, Rag, Searcher
from antiphon.pipelines.request_plan import TurnContext


class AntiphonChatEngine(BaseChatEngine):
    """Holds a conversation like `Chat`, with the same passages, prompts and texts. Responses have ``citations``.

    A follow-up question is completed before passages are retrieved. Use one engine for each
    conversation.

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
        chat_history: list[ChatMessage] | None = None,
        **generation: Any,
    ) -> None:
        self.rag, options = rag_of(retriever, llm)
        self.generation = options | generation
        self._history = list(chat_history or ())

    @property
    def chat_history(self) -> list[ChatMessage]:
        """The messages of the conversation."""
        return self._history

    def reset(self) -> None:
        """Clear the conversation."""
        self._history = []

    def chat(self, message: str, chat_history: list[ChatMessage] | None = None) -> CitedChatResponse:
        """Answer a message, with citations. See `BaseChatEngine`."""
        stream = self._stream(message, chat_history).to_end()
        response = CitedChatResponse(stream.answer.text, source_nodes=[node_of(passage) for passage in stream.passages])
        response.num_marked = stream.plan.num_marked
        return response

    async def achat(self, message: str, chat_history: list[ChatMessage] | None = None) -> CitedChatResponse:
        """Answer a message, with citations. See `BaseChatEngine`."""
        return await asyncio.to_thread(self.chat, message, chat_history)

    def stream_chat(self, message: str, chat_history: list[ChatMessage] | None = None) -> Any:
        """Stream the answer to a message, with citations at the end. See `BaseChatEngine`."""
        stream = self._stream(message, chat_history)
        return _response(stream, chat_stream=_pieces(stream))

    async def astream_chat(self, message: str, chat_history: list[ChatMessage] | None = None) -> Any:
        """Stream the answer to a message, with citations at the end. See `BaseChatEngine`."""
        stream = await asyncio.to_thread(self._stream, message, chat_history)
        return _response(stream, achat_stream=_apieces(stream))

    def _stream(self, message: str, chat_history: list[ChatMessage] | None) -> AnswerStream:
        if chat_history is not None:
            self._history = list(chat_history)
        context = TurnContext.of(chat_messages(self._history))
        return self.rag.stream(message, context=context, on_end=self._record, **self.generation)

    def _record(self, answer: Answer) -> None:
        if answer.text.strip():
            self._history.append(ChatMessage(answer.question, role=MessageRole.USER))
            self._history.append(ChatMessage(answer.text, role=MessageRole.ASSISTANT))


def _response(stream: AnswerStream, **pieces: Any) -> CitedChatStream:
    nodes = [node_of(passage) for passage in stream.passages]
    response = CitedChatStream(StreamingAgentChatResponse(source_nodes=nodes, is_writing_to_memory=False, **pieces))
    response.num_marked = stream.plan.num_marked
    return response


def _chat_response(text: str, piece: str) -> ChatResponse:
    return ChatResponse(message=ChatMessage(text, role=MessageRole.ASSISTANT), delta=piece)


def _pieces(stream: AnswerStream) -> Generator[ChatResponse, None, None]:
    text = ""
    with stream:
        for piece in stream:
            text += piece
            yield _chat_response(text, piece)


async def _apieces(stream: AnswerStream) -> AsyncGenerator[ChatResponse, None]:
    text = ""
    async with aclosing(read_in_thread(stream)) as pieces:
        async for piece in pieces:
            if not piece.is_thinking:
                text += piece.text
                yield _chat_response(text, piece.text)
