"""An Antiphon language model as a LangChain chat model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.prompt_values import ChatPromptValue, PromptValue
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from pydantic import ConfigDict

from antiphon.accel import Conversation
from antiphon.accel.text.tool_choice import prepare_tools
from antiphon.integrations.hidden_references import REFERENCES
from antiphon.integrations.langchain.base_model import AntiphonBaseModel
from antiphon.integrations.langchain.cache_keys import key_with_references
from antiphon.integrations.langchain.chat_messages import chat_messages
from antiphon.integrations.langchain.outputs import ai_message, last_chunk, piece_chunk
from antiphon.integrations.langchain.references import hide_references, move_to_arguments, references_of
from antiphon.integrations.langchain.retrieval_chain import Question, retrieval_chain
from antiphon.integrations.langchain.structured import openai_tool, with_json_output
from antiphon.integrations.model_call import ModelCall, VisibleText
from antiphon.integrations.stream_readers import AsyncStreamReader


class ChatAntiphon(AntiphonBaseModel, BaseChatModel):
    """A local chat model with lossless speculative decoding from the prompt and from references.

    The prompt is always a source of drafts. References come from the call (``references=[...]`` with texts or
    documents), from messages (``additional_kwargs["references"]``), and from tool results
    (``response_format="content_and_artifact"``). The answer cites the references that it was copied from.

    A call accepts ``stop``, ``max_tokens``, ``temperature``, ``top_p``, ``top_k``, ``min_p``, ``repetition_penalty``,
    ``seed``, ``drafter``, ``num_draft_tokens``, ``thinking``, ``max_thinking_tokens``, ``template_variables``,
    ``timeout`` and ``model``; another model is loaded at its first use and kept. Unknown parameters raise a
    `TypeError`. The model's thinking is in ``additional_kwargs["reasoning_content"]``. Fields: see `GenerationFields`.
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
        """Return a model that may call these tools; its chat template describes them.

        Args:
            tools: LangChain tools, functions, pydantic classes or OpenAI tool schemas.
            tool_choice: "auto", "none", "any" (forces a call, decoded under the tools' schemas) or a tool's name.
            strict: accepted and ignored.
            parallel_tool_calls: False: an answer has one tool call at most.
            **kwargs: further parameters of each call.
        """
        given = {"tool_choice": tool_choice, "parallel_tool_calls": parallel_tool_calls, **kwargs}
        known = {name: value for name, value in given.items() if name == "tool_choice" or value is not None}
        return self.bind(tools=[openai_tool(tool) for tool in tools], **known)

    def with_retriever(
        self, retriever: Runnable[str, list[Document]], *, prompt: BasePromptTemplate[Any] | None = None
    ) -> Runnable[Question, dict[str, Any]]:
        """Return a streaming chain from a question to "answer", "context" and "citations"; see `retrieval_chain`.

        Args:
            retriever: any LangChain retriever.
            prompt: template of "context" and "question"; None uses the model's own prompt format.
        """
        return retrieval_chain(self, retriever, prompt)

    def with_structured_output(
        self, schema: dict[str, Any] | type, *, include_raw: bool = False, **kwargs: Any
    ) -> Runnable[LanguageModelInput, Any]:
        """Return a model whose answers always follow the schema, because they are decoded under it.

        Args:
            schema: a pydantic class, a TypedDict or a JSON schema.
            include_raw: return "raw", "parsed" and "parsing_error" instead of the object.
            **kwargs: ``method="json_schema"`` answers with JSON text instead of a tool call; with
                ``method="json_mode"`` the prompt has to describe the JSON.
        """
        method = kwargs.get("method")
        if method in ("json_mode", "json_schema"):
            return with_json_output(self, schema, include_raw=include_raw, describe_schema=method == "json_schema")
        return super().with_structured_output(schema, include_raw=include_raw, **kwargs)

    def get_num_tokens_from_messages(self, messages: Sequence[BaseMessage], tools: Sequence[Any] | None = None) -> int:
        """Return the number of prompt tokens of these messages.

        Args:
            messages: the conversation.
            tools: tools that the prompt describes.
        """
        offered = [openai_tool(tool) for tool in tools or ()]
        return self.language_model.tokenize(Conversation(chat_messages(messages), offered)).count

    def _convert_input(self, model_input: LanguageModelInput) -> PromptValue:
        return ChatPromptValue(
            messages=[hide_references(each) for each in super()._convert_input(model_input).to_messages()]
        )

    def _get_invocation_params(self, stop: list[str] | None = None, **kwargs: Any) -> dict[str, Any]:
        kwargs.pop(REFERENCES, None)  # references must not get into traces
        return super()._get_invocation_params(stop=stop, **kwargs)

    def _get_llm_string(self, stop: list[str] | None = None, **kwargs: Any) -> str:
        passages = references_of((), kwargs.pop(REFERENCES, None))
        return key_with_references(super()._get_llm_string(stop=stop, **kwargs), passages)

    def _generate_with_cache(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        plain, given = move_to_arguments(messages, kwargs)
        return super()._generate_with_cache(plain, stop, run_manager, **given)

    async def _agenerate_with_cache(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        plain, given = move_to_arguments(messages, kwargs)
        return await super()._agenerate_with_cache(plain, stop, run_manager, **given)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        call = self._model_call(messages, stop, kwargs)
        return _result(ai_message(call, call.complete()))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        call = self._model_call(messages, stop, kwargs)
        async with AsyncStreamReader(call.stream) as reading:
            async for _ in reading:
                pass
        return _result(ai_message(call, reading.completion))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        call = self._model_call(messages, stop, kwargs)
        visible = VisibleText(call)
        with call.stream() as stream:
            for piece in iter(stream.next_piece, None):
                if chunk := piece_chunk(piece, visible.push(piece)):
                    yield ChatGenerationChunk(message=chunk)
        yield ChatGenerationChunk(message=last_chunk(call, stream.completion, visible.shown))

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        call = self._model_call(messages, stop, kwargs)
        visible = VisibleText(call)
        async with AsyncStreamReader(call.stream) as reading:
            async for piece in reading:
                if chunk := piece_chunk(piece, visible.push(piece)):
                    yield ChatGenerationChunk(message=chunk)
        yield ChatGenerationChunk(message=last_chunk(call, reading.completion, visible.shown))

    def _model_call(self, messages: list[BaseMessage], stop: list[str] | None, given: dict[str, Any]) -> ModelCall:
        hints = ("stream", "ls_structured_output_format")
        given = {name: value for name, value in given.items() if name not in hints}
        passages = references_of(messages, given.pop(REFERENCES, None))
        wanted, choice = given.pop("tools", None) or (), given.pop("tool_choice", None)
        is_parallel = given.pop("parallel_tool_calls", None) is not False
        model = given.pop("model", self.model)
        language_model = self.language_model_named(model)
        self.check_prompt(str(each.text) for each in messages)
        offer = prepare_tools(language_model.tokenizer, chat_messages(messages), wanted, choice)
        parameters, timeout = self.parameters(stop, given)
        if offer.schema is not None:
            parameters["json_schema"] = offer.schema
        prompt = Conversation(offer.messages, offer.tools, offer.assistant_prefix, offer.tool_choice)
        return ModelCall(
            language_model,
            model,
            prompt,
            passages,
            parameters,
            timeout,
            offer.schemas,
            offer.assistant_prefix,
            is_parallel,
        )


def _result(answer: AIMessage) -> ChatResult:
    return ChatResult(generations=[ChatGeneration(message=answer)])
