"""A chat model of LangChain that is an Antiphon language model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.prompt_values import ChatPromptValue, PromptValue
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import ConfigDict

from antiphon.accel import Conversation
from antiphon.accel.text.forced_tool_calls import prepare_tools
from antiphon.integrations.call import Call, Showing
from antiphon.integrations.langchain.answers import last_chunk, message
from antiphon.integrations.langchain.cache_keys import keyed
from antiphon.integrations.langchain.local import LocalModel
from antiphon.integrations.langchain.messages import chat_messages
from antiphon.integrations.langchain.references import gathered, hidden, references_of
from antiphon.integrations.langchain.retrieval_chain import Question, retrieval_chain
from antiphon.integrations.langchain.structured import as_json
from antiphon.integrations.opaque_references import REFERENCES
from antiphon.integrations.reading import AsyncReading


class ChatAntiphon(LocalModel, BaseChatModel):
    """A local chat model whose answers are drafted from what they may quote: the same words, in fewer forwards.

    The prompt itself is always a source of drafts. Others are given in a call, ``references=[...]`` with texts or
    documents, ride on a message (``additional_kwargs["references"]``), or are what a tool returned beside its text
    (``response_format="content_and_artifact"``). The answer's citations say where it repeats these verbatim.

    Per call it takes ``stop``, ``max_tokens``, ``temperature``, ``top_p``, ``top_k``, ``min_p``,
    ``repetition_penalty``, ``seed``, ``drafter``, ``num_draft_tokens``, ``timeout``, and ``model``: another one by its name, loaded
    when it is first asked for and kept. A parameter of another name is an error.
    """

    model_config = ConfigDict(extra="forbid")

    streaming: bool = False

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | dict[str, Any] | bool | None = None,
        strict: bool | None = None,
        parallel_tool_calls: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """A model that may call these tools: its chat template tells it of them.

        ``tool_choice`` is "auto", "none", "any" (one of them has to be called: the answer is begun as a call
        and decoded under its schema) or a
        tool's name. ``strict`` and ``parallel_tool_calls`` are hints that a local model has no use for.
        """
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], tool_choice=tool_choice, **kwargs)

    def with_retriever(
        self, retriever: Runnable[str, list[Document]], *, prompt: BasePromptTemplate[Any] | None = None
    ) -> Runnable[Question, dict[str, Any]]:
        """A chain from a question to its "answer", "context" and "citations", streaming; see `retrieval_chain`."""
        return retrieval_chain(self, retriever, prompt)

    def with_structured_output(
        self, schema: dict[str, Any] | type, *, include_raw: bool = False, **kwargs: Any
    ) -> Runnable[LanguageModelInput, Any]:
        """A model that answers in this form, always: it is decoded under the schema.

        It answers by the call of a tool, or with ``method="json_schema"`` by JSON as text; both tell the model of the
        schema, whatever its chat template writes. With ``method="json_mode"`` the prompt has to.
        """
        method = kwargs.get("method")
        if method in ("json_mode", "json_schema"):
            return as_json(self, schema, include_raw=include_raw, told=method == "json_schema")
        return super().with_structured_output(schema, include_raw=include_raw, **kwargs)

    def get_num_tokens_from_messages(self, messages: Sequence[BaseMessage], tools: Sequence[Any] | None = None) -> int:
        """How many tokens the prompt of these messages has."""
        offered = [convert_to_openai_tool(tool) for tool in tools or ()]
        return self.language_model.tokenize(Conversation(chat_messages(messages), offered)).count

    def _convert_input(self, model_input: LanguageModelInput) -> PromptValue:
        return ChatPromptValue(messages=[hidden(each) for each in super()._convert_input(model_input).to_messages()])

    def _get_invocation_params(self, stop: list[str] | None = None, **kwargs: Any) -> dict[str, Any]:
        kwargs.pop(REFERENCES, None)  # they are nobody's business but the decoder's, so in no trace
        return super()._get_invocation_params(stop=stop, **kwargs)

    def _get_llm_string(self, stop: list[str] | None = None, **kwargs: Any) -> str:
        passages = references_of((), kwargs.pop(REFERENCES, None))
        return keyed(super()._get_llm_string(stop=stop, **kwargs), passages)

    def _generate_with_cache(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        bare, given = gathered(messages, kwargs)
        return super()._generate_with_cache(bare, stop, run_manager, **given)

    async def _agenerate_with_cache(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        bare, given = gathered(messages, kwargs)
        return await super()._agenerate_with_cache(bare, stop, run_manager, **given)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        call = self._call(messages, stop, kwargs)
        return _result(message(call, call.read()))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        call = self._call(messages, stop, kwargs)
        async with AsyncReading(call.begin) as reading:
            async for _ in reading:
                pass
        return _result(message(call, reading.completion))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        call = self._call(messages, stop, kwargs)
        said = Showing(call)
        with call.begin() as stream:
            for piece in stream:
                if text := said.push(piece):
                    yield ChatGenerationChunk(message=AIMessageChunk(content=text))
        yield ChatGenerationChunk(message=last_chunk(call, stream.completion, said.shown))

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        call = self._call(messages, stop, kwargs)
        said = Showing(call)
        async with AsyncReading(call.begin) as reading:
            async for piece in reading:
                if text := said.push(piece):
                    yield ChatGenerationChunk(message=AIMessageChunk(content=text))
        yield ChatGenerationChunk(message=last_chunk(call, reading.completion, said.shown))

    def _call(self, messages: list[BaseMessage], stop: list[str] | None, given: dict[str, Any]) -> Call:
        hints = ("stream", "ls_structured_output_format")
        given = {name: value for name, value in given.items() if name not in hints}
        passages = references_of(messages, given.pop(REFERENCES, None))
        wanted, choice = given.pop("tools", None) or (), given.pop("tool_choice", None)
        model = given.pop("model", self.model)
        language_model = self.named(model)
        self.check_prompt(str(each.text) for each in messages)
        offer = prepare_tools(language_model.tokenizer, chat_messages(messages), wanted, choice)
        parameters, timeout = self.parameters(stop, given)
        if offer.schema is not None:
            parameters["json_schema"] = offer.schema
        prompt = Conversation(offer.messages, offer.tools, offer.assistant_prefix, offer.tool_choice)
        return Call(language_model, model, prompt, passages, parameters, timeout, offer.names, offer.assistant_prefix)


def _result(answer: AIMessage) -> ChatResult:
    return ChatResult(generations=[ChatGeneration(message=answer)])
