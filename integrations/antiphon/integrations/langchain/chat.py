"""An Antiphon language model as a LangChain chat model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from operator import itemgetter
from typing import Any

from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel, LanguageModelInput, ModelProfile
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.prompt_values import ChatPromptValue, PromptValue
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass
from pydantic import ConfigDict

from antiphon.accel import Conversation, RemoteError
from antiphon.accel.text.parameters import Settings
from antiphon.accel.text.thinking_switch import thinking_traits
from antiphon.accel.text.tool_choice import supports_tools
from antiphon.integrations.generation_fields import DESCRIBE_SCHEMA
from antiphon.integrations.langchain.base_model import AntiphonBaseModel
from antiphon.integrations.langchain.chat_messages import chat_messages
from antiphon.integrations.langchain.documents import hide_arguments, hide_references, references_of
from antiphon.integrations.langchain.outputs import ai_message, message_chunk
from antiphon.integrations.langchain.retrieval_chain import ChainInput, retrieval_chain
from antiphon.integrations.model_call import ModelCall
from antiphon.integrations.references import REFERENCES


class ChatAntiphon(AntiphonBaseModel, BaseChatModel):
    """A local chat model with lossless speculative decoding from the prompt and from references.

    The prompt is always a source of drafts. References come from the call (``references=[...]`` with texts or
    documents), from messages (``additional_kwargs["references"]``), and from tool results
    (``response_format="content_and_artifact"``). The answer cites the references from which it was copied.

    A call accepts ``stop``, ``max_tokens``, ``temperature``, ``top_p``, ``top_k``, ``min_p``, ``repetition_penalty``,
    ``seed``, ``drafter``, ``num_draft_tokens``, ``thinking``, ``max_thinking_tokens``, ``template_variables``,
    ``timeout``, ``response_format`` and ``model``. A model named in a call is loaded when it is first used, and kept.
    Unknown parameters raise a `TypeError`. The model's thinking is in ``additional_kwargs["reasoning_content"]``.
    Fields: see `GenerationFields`.
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
        """Return a model that may call these tools; the chat template puts their descriptions into the prompt.

        Args:
            tools: LangChain tools, functions, pydantic classes or OpenAI tool schemas.
            tool_choice: "auto", "none", a tool's name, or "any": the answer must be a tool call,
                and decoding is constrained to the tools' schemas.
            strict: accepted and ignored.
            parallel_tool_calls: False: an answer has at most one tool call.
        """
        if parallel_tool_calls is not None:
            kwargs["parallel_tool_calls"] = parallel_tool_calls
        return self.bind(tools=[openai_tool(tool) for tool in tools], tool_choice=tool_choice, **kwargs)

    def with_retriever(
        self, retriever: Runnable[str, list[Document]], *, prompt: BasePromptTemplate[Any] | None = None
    ) -> Runnable[ChainInput, dict[str, Any]]:
        """Return a streaming chain from a question to "answer", "context" and "citations"; see `retrieval_chain`.

        Args:
            prompt: template with the variables "context" and "question"; None: the model's own prompt format.
        """
        return retrieval_chain(self, retriever, prompt)

    def with_structured_output(
        self, schema: dict[str, Any] | type, *, include_raw: bool = False, **kwargs: Any
    ) -> Runnable[LanguageModelInput, Any]:
        """Return a model whose answers follow a schema, because decoding is constrained to it.

        Args:
            schema: a pydantic class, a TypedDict or a JSON schema.
            include_raw: return "raw", "parsed" and "parsing_error" instead of the object.
            **kwargs: with ``method="json_schema"``, the model writes JSON text instead of a tool
                call; with ``method="json_mode"``, the prompt has to describe the JSON.
        """
        method = kwargs.get("method")
        if method in ("json_mode", "json_schema"):
            return with_json_output(self, schema, include_raw=include_raw, describe_schema=method == "json_schema")
        return super().with_structured_output(schema, include_raw=include_raw, **kwargs)

    def get_num_tokens_from_messages(self, messages: Sequence[BaseMessage], tools: Sequence[Any] | None = None) -> int:
        """Return the number of prompt tokens of these messages."""
        offered = [openai_tool(tool) for tool in tools or ()]
        return self.language_model.tokenize(Conversation(chat_messages(messages), offered)).count

    def _resolve_model_profile(self) -> ModelProfile:
        model, tokenizer = self.language_model, self.language_model.tokenizer
        follows = model.prompt_format is None  # other models answer from documents alone
        profile = ModelProfile(
            name=self.model,
            max_output_tokens=self.max_tokens or Settings().max_new_tokens,
            text_inputs=True,
            text_outputs=True,
            image_inputs=False,
            audio_inputs=False,
            video_inputs=False,
            tool_calling=follows and supports_tools(tokenizer),
            tool_choice=follows,
            structured_output=follows,
            temperature=follows,
        )
        if tokenizer is not None:
            profile["reasoning_output"] = thinking_traits(tokenizer).format is not None
        with suppress(RemoteError):  # reported by the first call
            if (window := model.context_window) is not None:
                profile["max_input_tokens"] = window
        return profile

    def _convert_input(self, model_input: LanguageModelInput) -> PromptValue:
        messages = super()._convert_input(model_input).to_messages()
        return ChatPromptValue(messages=[hide_references(message) for message in messages])

    def _get_invocation_params(self, stop: list[str] | None = None, **kwargs: Any) -> dict[str, Any]:
        kwargs.pop(REFERENCES, None)  # references must not get into traces
        return super()._get_invocation_params(stop=stop, **kwargs)

    def _get_llm_string(self, stop: list[str] | None = None, **kwargs: Any) -> str:
        return super()._get_llm_string(stop=stop, **hide_arguments(kwargs))

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        call = self._model_call(messages, stop, kwargs)
        return _result(ai_message(call, call.complete()))

    async def _agenerate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        call = self._model_call(messages, stop, kwargs)
        return _result(ai_message(call, await call.acomplete()))

    def _stream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        call = self._model_call(messages, stop, kwargs)
        for state in call.states():
            yield ChatGenerationChunk(message=message_chunk(call, state))

    async def _astream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        call = self._model_call(messages, stop, kwargs)
        async with aclosing(call.astates()) as states:
            async for state in states:
                yield ChatGenerationChunk(message=message_chunk(call, state))

    def _model_call(self, messages: list[BaseMessage], stop: list[str] | None, given: dict[str, Any]) -> ModelCall:
        hints = ("stream", "ls_structured_output_format", "response_format")
        kept = {name: value for name, value in given.items() if name not in hints}
        kept |= {**format_arguments(given.get("response_format")), "stop": stop}
        return self.chat_call(chat_messages(messages), references_of(messages, given), kept)


def _result(answer: AIMessage) -> ChatResult:
    return ChatResult(generations=[ChatGeneration(message=answer)])


def with_json_output(
    model: BaseChatModel, schema: dict[str, Any] | type, *, include_raw: bool = False, describe_schema: bool = False
) -> Runnable[LanguageModelInput, Any]:
    """Return a Runnable that calls the model and parses its answer as JSON.

    Args:
        schema: a pydantic class, whose objects are returned; for other schemas a dict is returned.
        include_raw: return "raw", "parsed" and "parsing_error" instead; then parsing raises no
            error.
        describe_schema: append the schema to the last message.
    """
    parser: Runnable[Any, Any] = JsonOutputParser()
    if isinstance(schema, type) and is_basemodel_subclass(schema):
        parser = PydanticOutputParser(pydantic_object=schema)
    form = {"kwargs": {"method": "json_schema" if describe_schema else "json_mode"}, "schema": schema}
    asked: Runnable[LanguageModelInput, Any] = model.bind(
        json_schema=json_schema_of(schema), describe_schema=describe_schema, ls_structured_output_format=form
    )
    if not include_raw:
        return asked | parser
    parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=asked) | parsed.with_fallbacks([failed], exception_key="parsing_error")


def format_arguments(response_format: Any) -> dict[str, Any]:
    """Convert OpenAI's ``response_format`` to arguments of a call.

    Raises:
        ValueError: the format is unknown.
    """
    match response_format:
        case None | {"type": "text"}:
            return {}
        case {"type": "json_object"}:
            return {"json_schema": {"type": "object"}}
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return {"json_schema": schema, DESCRIBE_SCHEMA: True}
    raise ValueError(f"response_format is {response_format!r}; give OpenAI's text, json_object or json_schema.")


def json_schema_of(schema: dict[str, Any] | type) -> dict[str, Any]:
    """Return the JSON schema. Pydantic converts its own classes, because LangChain cuts recursive references."""
    if isinstance(schema, type) and is_basemodel_subclass(schema) and hasattr(schema, "model_json_schema"):
        return dict(schema.model_json_schema())
    return convert_to_json_schema(schema)


def openai_tool(tool: Any) -> dict[str, Any]:
    """Return a tool in OpenAI's format. For a pydantic class, pydantic makes the JSON schema of the parameters."""
    converted = convert_to_openai_tool(tool)
    if isinstance(tool, type) and is_basemodel_subclass(tool):
        converted["function"]["parameters"] = json_schema_of(tool)
    return converted
