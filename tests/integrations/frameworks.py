"""LangChain and LlamaIndex behind one interface, for tests of what both do alike."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any, ClassVar

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from llama_index.core.base.llms.types import ChatMessage, CitationBlock, ThinkingBlock, ToolCallBlock
from llama_index.core.tools import FunctionTool

from antiphon.accel import LanguageModel
from antiphon.integrations import langchain, llama_index
from antiphon.integrations.langchain import documents
from antiphon.integrations.llama_index import nodes
from antiphon.retrieval import Passage, Reranker


@dataclass(frozen=True)
class Reply:
    """An answer.

    Attributes:
        tokens: number of prompt tokens and of generated tokens.
        calls: names and arguments of tool calls.
        malformed: texts of tool calls that cannot be parsed.
        citations: start in the text, source, and cited text.
        facts: model, finish reason and step statistics.
    """

    text: str
    tokens: tuple[int, int] = (0, 0)
    thinking: str = ""
    calls: Sequence[tuple[str, Any]] = ()
    malformed: Sequence[str] = ()
    citations: Sequence[tuple[int, str, str]] = ()
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Streamed:
    """A streamed answer: its pieces, the pieces of its thinking, and the whole."""

    pieces: list[str]
    thinking: list[str]
    whole: Reply


class Model:
    """A language model of a framework."""

    kind: ClassVar[Any]
    takes_messages: ClassVar[bool] = True

    def __init__(self, language_model: LanguageModel, **fields: Any) -> None:
        self.model = self.kind(language_model=language_model, **fields)

    def plain(self, text: str) -> Any:
        """Return the prompt that `LanguageModel.generate` needs for the same answer."""
        return [{"role": "user", "content": text}] if self.takes_messages else text

    def ask(self, prompt: Any, **given: Any) -> Reply:
        raise NotImplementedError

    async def aask(self, prompt: Any, **given: Any) -> Reply:
        raise NotImplementedError

    def iterate(self, prompt: Any, **given: Any) -> Iterator[Any]:
        """Yield the framework's own pieces."""
        raise NotImplementedError

    def aiterate(self, prompt: Any, **given: Any) -> AsyncIterator[Any]:
        raise NotImplementedError

    def streamed(self, pieces: list[Any]) -> Streamed:
        raise NotImplementedError

    def stream(self, prompt: Any, **given: Any) -> Streamed:
        return self.streamed(list(self.iterate(prompt, **given)))

    async def astream(self, prompt: Any, **given: Any) -> Streamed:
        return self.streamed([piece async for piece in self.aiterate(prompt, **given)])

    def turns(self, *turns: tuple[str, str], references: Any = None) -> Any:
        """Return messages; the last one may carry references."""
        raise NotImplementedError

    def call_tools(self, tools: Sequence[Callable[..., Any]], prompt: Any, choice: Any = None, **given: Any) -> Reply:
        raise NotImplementedError


class LangChainChat(Model):
    kind: ClassVar[Any] = langchain.ChatAntiphon

    def ask(self, prompt: Any, **given: Any) -> Reply:
        return self.reply(self.model.invoke(prompt, **given))

    async def aask(self, prompt: Any, **given: Any) -> Reply:
        return self.reply(await self.model.ainvoke(prompt, **given))

    def iterate(self, prompt: Any, **given: Any) -> Iterator[Any]:
        return self.model.stream(prompt, **given)  # type: ignore[no-any-return]

    def aiterate(self, prompt: Any, **given: Any) -> AsyncIterator[Any]:
        return self.model.astream(prompt, **given)  # type: ignore[no-any-return]

    def streamed(self, pieces: list[Any]) -> Streamed:
        thinking = [piece.additional_kwargs.get("reasoning_content", "") for piece in pieces]
        return Streamed([str(piece.text) for piece in pieces], thinking, self.reply(reduce(add, pieces)))

    def turns(self, *turns: tuple[str, str], references: Any = None) -> Any:
        kinds: dict[str, Any] = {"user": HumanMessage, "assistant": AIMessage, "system": SystemMessage}
        messages = [kinds[role](text) for role, text in turns]
        if references is not None:
            messages[-1].additional_kwargs["references"] = references
        return messages

    def call_tools(self, tools: Sequence[Callable[..., Any]], prompt: Any, choice: Any = None, **given: Any) -> Reply:
        return self.reply(self.model.bind_tools(tools, tool_choice=choice, **given).invoke(prompt))

    @staticmethod
    def reply(message: Any) -> Reply:
        notes = [note for block in message.content_blocks for note in block.get("annotations", ())]
        usage = message.usage_metadata or {}
        return Reply(
            str(message.text),
            (usage.get("input_tokens", 0), usage.get("output_tokens", 0)),
            message.additional_kwargs.get("reasoning_content", ""),
            [(call["name"], call["args"]) for call in message.tool_calls],
            [call["args"] for call in message.invalid_tool_calls],
            [(note["start_index"], note["title"], note["cited_text"]) for note in notes],
            {**message.response_metadata, "model": message.response_metadata.get("model_name")},
        )


class LangChainText(LangChainChat):
    kind = langchain.AntiphonLLM
    takes_messages = False

    def ask(self, prompt: Any, **given: Any) -> Reply:
        return self.reply(self.model.generate([prompt], **given).generations[0][0])

    async def aask(self, prompt: Any, **given: Any) -> Reply:
        return self.reply((await self.model.agenerate([prompt], **given)).generations[0][0])

    def streamed(self, pieces: list[Any]) -> Streamed:
        return Streamed(pieces, [], Reply("".join(pieces)))

    @staticmethod
    def reply(message: Any) -> Reply:
        info = message.generation_info
        notes = [(note["start_index"], note["title"], note["cited_text"]) for note in info.get("citations", ())]
        tokens = info["usage"]["input_tokens"], info["usage"]["output_tokens"]
        return Reply(message.text, tokens, citations=notes, facts={**info, "model": info["model_name"]})


class LlamaIndexChat(Model):
    kind = llama_index.AntiphonLLM

    def ask(self, prompt: Any, **given: Any) -> Reply:
        return self.reply(self.model.chat(self._messages(prompt), **given))

    async def aask(self, prompt: Any, **given: Any) -> Reply:
        return self.reply(await self.model.achat(self._messages(prompt), **given))

    def iterate(self, prompt: Any, **given: Any) -> Iterator[Any]:
        return self.model.stream_chat(self._messages(prompt), **given)  # type: ignore[no-any-return]

    async def aiterate(self, prompt: Any, **given: Any) -> AsyncIterator[Any]:
        async for piece in await self.model.astream_chat(self._messages(prompt), **given):
            yield piece

    def streamed(self, pieces: list[Any]) -> Streamed:
        thinking = [piece.additional_kwargs.get("thinking_delta", "") for piece in pieces]
        return Streamed([piece.delta or "" for piece in pieces], thinking, self.reply(pieces[-1]))

    def turns(self, *turns: tuple[str, str], references: Any = None) -> Any:
        messages = [ChatMessage(text, role=role) for role, text in turns]
        if references is not None:
            messages[-1].additional_kwargs["references"] = references
        return messages

    def call_tools(self, tools: Sequence[Callable[..., Any]], prompt: Any, choice: Any = None, **given: Any) -> Reply:
        wrapped = [FunctionTool.from_defaults(tool) for tool in tools]
        parallel = given.pop("parallel_tool_calls", True)
        return self.reply(
            self.model.chat_with_tools(
                wrapped,
                chat_history=self._messages(prompt),
                tool_choice=choice,
                allow_parallel_tool_calls=parallel,
                **given,
            )
        )

    def _messages(self, prompt: Any) -> Any:
        return self.turns(("user", prompt)) if isinstance(prompt, str) else prompt

    @staticmethod
    def reply(response: Any) -> Reply:
        blocks = response.message.blocks
        notes: list[Any] = [block for block in blocks if isinstance(block, CitationBlock)]
        return Reply(
            response.message.content or "",
            (response.raw["usage"]["prompt_tokens"], response.raw["usage"]["completion_tokens"]),
            "".join(block.content or "" for block in blocks if isinstance(block, ThinkingBlock)),
            [(block.tool_name, block.tool_kwargs) for block in blocks if isinstance(block, ToolCallBlock)],
            [call["text"] for call in response.message.additional_kwargs.get("invalid_tool_calls", ())],
            [(note.additional_location_info["start"], note.title, note.cited_content.text) for note in notes],
            response.raw,
        )


class LlamaIndexText(LlamaIndexChat):
    def ask(self, prompt: Any, **given: Any) -> Reply:
        return self.reply(self.model.complete(prompt, **given))

    async def aask(self, prompt: Any, **given: Any) -> Reply:
        return self.reply(await self.model.acomplete(prompt, **given))

    def iterate(self, prompt: Any, **given: Any) -> Iterator[Any]:
        return self.model.stream_complete(prompt, **given)  # type: ignore[no-any-return]

    async def aiterate(self, prompt: Any, **given: Any) -> AsyncIterator[Any]:
        async for piece in await self.model.astream_complete(prompt, **given):
            yield piece

    @staticmethod
    def reply(response: Any) -> Reply:
        usage = response.raw["usage"]
        return Reply(response.text, (usage["prompt_tokens"], usage["completion_tokens"]), facts=response.raw)


CHATS: dict[str, type[Model]] = {"langchain": LangChainChat, "llama-index": LlamaIndexChat}
MODELS: dict[str, type[Model]] = {**CHATS, "langchain text": LangChainText, "llama-index text": LlamaIndexText}


@dataclass(frozen=True)
class Retrieval:
    """The retrieval classes of a framework."""

    retriever: Any
    result: Callable[[Passage], Any]
    passage: Callable[[object], Passage | None]
    search: Callable[[Any, str], list[Any]]
    embedding: Any
    rerank: Callable[[Reranker, int | None, Sequence[Any], str], list[Any]]


LANGCHAIN = Retrieval(
    langchain.AntiphonRetriever,
    documents.document_of,
    documents.passage_of,
    lambda retriever, question: retriever.invoke(question),
    langchain.AntiphonEmbeddings,
    lambda reranker, top_n, given, question: list(
        langchain.AntiphonReranker(reranker=reranker, top_n=top_n).compress_documents(given, question)
    ),
)
LLAMA_INDEX = Retrieval(
    llama_index.AntiphonRetriever,
    nodes.node_of,
    nodes.passage_of,
    lambda retriever, question: retriever.retrieve(question),
    llama_index.AntiphonEmbedding,
    lambda reranker, top_n, given, question: llama_index.AntiphonRerank(
        reranker=reranker, top_n=top_n
    ).postprocess_nodes(list(given), query_str=question),
)
FRAMEWORKS = {"langchain": LANGCHAIN, "llama-index": LLAMA_INDEX}
