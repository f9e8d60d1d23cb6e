"""An Antiphon language model as a LlamaIndex LLM."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Sequence
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
    ToolCallBlock,
)
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.prompts import BasePromptTemplate, ChatPromptTemplate
from llama_index.core.tools.types import BaseTool
from llama_index.core.types import TokenAsyncGen, TokenGen
from pydantic import ConfigDict

from antiphon.accel import Completion, Conversation
from antiphon.accel.text.messages import PromptInput
from antiphon.accel.text.parameters import Settings
from antiphon.accel.text.tool_choice import NONE, OPTIONAL, prepare_tools, supports_tools
from antiphon.integrations.generation_fields import GenerationFields
from antiphon.integrations.hidden_references import REFERENCES
from antiphon.integrations.llama_index.chat_messages import arguments_of, chat_messages
from antiphon.integrations.llama_index.outputs import (
    INVALID,
    AnswerState,
    chat_response,
    chat_state,
    completion_response,
    completion_state,
    last_state,
)
from antiphon.integrations.llama_index.prompt_template import prompt_template
from antiphon.integrations.llama_index.references import hide_references, template_references, without_references
from antiphon.integrations.llama_index.structured import Model, call_arguments, partial_object, with_schema
from antiphon.integrations.model_call import ModelCall, VisibleText
from antiphon.integrations.stream_readers import AsyncStreamReader

PARALLEL = "parallel_tool_calls"
"""The argument of a call that allows several tool calls in one answer."""


class _LLMMethods(GenerationFields, FunctionCallingLLM):
    """The methods of a LlamaIndex LLM; references arrive as `HiddenReferences` only."""

    model_config = ConfigDict(extra="forbid")

    @classmethod
    def class_name(cls) -> str:
        """The name under which LlamaIndex saves it."""
        return "AntiphonLLM"

    @property
    def metadata(self) -> LLMMetadata:
        """Context window, answer length, and whether the model takes messages and calls tools."""
        window = self.language_model.context_window
        known: dict[str, Any] = {} if window is None else {"context_window": window}
        return LLMMetadata(
            **known,
            num_output=self.max_tokens or Settings().max_new_tokens,
            is_chat_model=self._takes_messages,
            is_function_calling_model=supports_tools(self.language_model.tokenizer),
            model_name=self.model,
        )

    def prompt_template(self) -> ChatPromptTemplate:
        """Return the model's own prompt format as the ``text_qa_template`` of a synthesizer."""
        return prompt_template(self.language_model)

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        call = self._model_call(self._conversation(messages, kwargs), kwargs)
        return chat_response(call, call.complete())

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        call = self._model_call(self._conversation(messages, kwargs), kwargs)

        def responses() -> ChatResponseGen:
            for state in self._states(call):
                yield chat_state(call, state)

        return responses()

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        call = self._model_call(self._conversation(messages, kwargs), kwargs)
        return chat_response(call, await self._acomplete(call))

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        call = self._model_call(self._conversation(messages, kwargs), kwargs)

        async def responses() -> ChatResponseAsyncGen:
            async for state in self._astates(call):
                yield chat_state(call, state)

        return responses()

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        call = self._model_call(self._text(prompt, formatted), kwargs)
        return completion_response(call, call.complete())

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        call = self._model_call(self._text(prompt, formatted), kwargs)

        def responses() -> CompletionResponseGen:
            for state in self._states(call):
                if state.delta or state.completion is not None:
                    yield completion_state(call, state)

        return responses()

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        call = self._model_call(self._text(prompt, formatted), kwargs)
        return completion_response(call, await self._acomplete(call))

    @llm_completion_callback()
    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        call = self._model_call(self._text(prompt, formatted), kwargs)

        async def responses() -> CompletionResponseAsyncGen:
            async for state in self._astates(call):
                if state.delta or state.completion is not None:
                    yield completion_state(call, state)

        return responses()

    def structured_predict(
        self,
        output_cls: type[Model],
        prompt: BasePromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> Model:
        """Return an object of a pydantic class, decoded under its JSON schema. See `LLM.structured_predict`."""
        schema = output_cls.model_json_schema()
        with template_references(prompt_args) as arguments:
            messages = self._extend_messages(prompt.format_messages(llm=self, **arguments))
            answer = self.chat(with_schema(messages, schema), **call_arguments(llm_kwargs, schema))
        return output_cls.model_validate_json(answer.message.content or "")

    async def astructured_predict(
        self,
        output_cls: type[Model],
        prompt: BasePromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> Model:
        """Return an object of a pydantic class asynchronously. See `LLM.astructured_predict`."""
        schema = output_cls.model_json_schema()
        with template_references(prompt_args) as arguments:
            messages = self._extend_messages(prompt.format_messages(llm=self, **arguments))
            answer = await self.achat(with_schema(messages, schema), **call_arguments(llm_kwargs, schema))
        return output_cls.model_validate_json(answer.message.content or "")

    def _structured_stream_call(
        self,
        output_cls: type[Model],
        prompt: BasePromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> Generator[Any, None, None]:
        schema, text = output_cls.model_json_schema(), ""
        with template_references(prompt_args) as arguments:
            messages = self._extend_messages(prompt.format_messages(llm=self, **arguments))
            pieces = self.stream_chat(with_schema(messages, schema), **call_arguments(llm_kwargs, schema))
        for piece in pieces:
            text = piece.message.content or ""
            if (known := partial_object(text, output_cls)) is not None:
                yield known
        yield output_cls.model_validate_json(text)

    async def _structured_astream_call(
        self,
        output_cls: type[Model],
        prompt: BasePromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> AsyncGenerator[Any, None]:
        schema = output_cls.model_json_schema()
        with template_references(prompt_args) as arguments:
            messages = self._extend_messages(prompt.format_messages(llm=self, **arguments))
            pieces = await self.astream_chat(with_schema(messages, schema), **call_arguments(llm_kwargs, schema))

        async def objects() -> AsyncGenerator[Any, None]:
            text = ""
            async for piece in pieces:
                text = piece.message.content or ""
                if (known := partial_object(text, output_cls)) is not None:
                    yield known
            yield output_cls.model_validate_json(text)

        return objects()

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        """Return the tool calls of an answer.

        Args:
            response: the answer.
            error_on_no_tool_call: raise an error if there are none.
            **kwargs: ignored.

        Raises:
            ValueError: there is no readable tool call.
        """
        blocks = [block for block in response.message.blocks if isinstance(block, ToolCallBlock)]
        if error_on_no_tool_call and not blocks:
            broken = [each["text"] for each in response.message.additional_kwargs.get(INVALID, ())]
            shown = f"that can be read: {broken[0]!r}" if broken else f": {response.message.content!r}"
            raise ValueError(f"The answer calls no tool{' ' if broken else ''}{shown}.")
        return [
            ToolSelection(tool_id=each.tool_call_id or "", tool_name=each.tool_name, tool_kwargs=arguments_of(each))
            for each in blocks
        ]

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        asked = ChatMessage(user_msg) if isinstance(user_msg, str) else user_msg
        messages = [*(chat_history or []), *([] if asked is None else [asked])]
        offered = [tool.metadata.to_openai_tool() for tool in tools]
        given = kwargs.pop("tool_choice", None)
        choice = "any" if tool_required and given in (*OPTIONAL, NONE) else given
        return {
            "messages": messages,
            "tools": offered,
            "tool_choice": choice,
            PARALLEL: allow_parallel_tool_calls,
            **kwargs,
        }

    def _conversation(self, messages: Sequence[ChatMessage], given: dict[str, Any]) -> PromptInput:
        """Build the prompt of messages with the chat template, or as one text if there is none."""
        self.check_prompt(message.content or "" for message in messages)
        wanted, choice = given.pop("tools", None) or (), given.pop("tool_choice", None)
        if not self._takes_messages:
            return str(self.messages_to_prompt(messages))  # type: ignore[misc]  # a validator has set it
        offer = prepare_tools(self.language_model.tokenizer, chat_messages(messages), wanted, choice)
        given["tools"] = offer.schemas
        if offer.schema is not None:
            given["json_schema"] = offer.schema
        return Conversation(offer.messages, offer.tools, offer.assistant_prefix, offer.tool_choice)

    def _text(self, prompt: str, formatted: bool) -> PromptInput:
        """Build the prompt of a text: a user message for chat models, unless it is formatted already."""
        self.check_prompt([prompt])
        if self._takes_messages and not formatted:
            return Conversation([{"role": "user", "content": prompt}])
        return prompt if formatted else str(self.completion_to_prompt(prompt))  # type: ignore[misc]

    def _model_call(self, prompt: PromptInput, given: dict[str, Any]) -> ModelCall:
        passages = getattr(given.get(REFERENCES), "passages", ())
        stop = given.get("stop")
        kept = {name: value for name, value in given.items() if name not in (REFERENCES, "stop", "tools", PARALLEL)}
        parameters, timeout = self.parameters(stop, kept)
        assistant_prefix = prompt.assistant_prefix if isinstance(prompt, Conversation) else ""
        tools, is_parallel = given.get("tools", {}), given.get(PARALLEL) is not False
        return ModelCall(
            self.language_model, self.model, prompt, passages, parameters, timeout, tools, assistant_prefix, is_parallel
        )

    def _states(self, call: ModelCall) -> Iterator[AnswerState]:
        visible = VisibleText(call)
        with call.stream() as stream:
            for piece in iter(stream.next_piece, None):
                if (new := visible.push(piece)) or piece.is_thinking:
                    yield AnswerState(visible.shown, new, visible.reasoning, piece.text if piece.is_thinking else "")
        yield last_state(call, stream.completion, visible)

    async def _astates(self, call: ModelCall) -> AsyncIterator[AnswerState]:
        visible = VisibleText(call)
        async with AsyncStreamReader(call.stream) as reading:
            async for piece in reading:
                if (new := visible.push(piece)) or piece.is_thinking:
                    yield AnswerState(visible.shown, new, visible.reasoning, piece.text if piece.is_thinking else "")
        yield last_state(call, reading.completion, visible)

    async def _acomplete(self, call: ModelCall) -> Completion:
        async with AsyncStreamReader(call.stream) as reading:
            async for _ in reading:
                pass
        return reading.completion

    @property
    def _takes_messages(self) -> bool:
        return self.language_model.takes_messages


class _HidingReferences:
    """Hides references before LlamaIndex passes the arguments of a call to its event handlers."""

    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return super().chat(without_references(messages), **hide_references(kwargs, messages))  # type: ignore[misc, no-any-return]

    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        return super().stream_chat(without_references(messages), **hide_references(kwargs, messages))  # type: ignore[misc, no-any-return]

    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return await super().achat(without_references(messages), **hide_references(kwargs, messages))  # type: ignore[misc, no-any-return]

    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        return await super().astream_chat(without_references(messages), **hide_references(kwargs, messages))  # type: ignore[misc, no-any-return]

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return super().complete(prompt, formatted=formatted, **hide_references(kwargs))  # type: ignore[misc, no-any-return]

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        return super().stream_complete(prompt, formatted=formatted, **hide_references(kwargs))  # type: ignore[misc, no-any-return]

    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return await super().acomplete(prompt, formatted=formatted, **hide_references(kwargs))  # type: ignore[misc, no-any-return]

    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        return await super().astream_complete(prompt, formatted=formatted, **hide_references(kwargs))  # type: ignore[misc, no-any-return]

    def predict(self, prompt: BasePromptTemplate, **prompt_args: Any) -> str:
        with template_references(prompt_args) as arguments:
            return super().predict(prompt, **arguments)  # type: ignore[misc, no-any-return]

    def stream(self, prompt: BasePromptTemplate, **prompt_args: Any) -> TokenGen:
        with template_references(prompt_args) as arguments:
            return super().stream(prompt, **arguments)  # type: ignore[misc, no-any-return]

    async def apredict(self, prompt: BasePromptTemplate, **prompt_args: Any) -> str:
        with template_references(prompt_args) as arguments:
            return await super().apredict(prompt, **arguments)  # type: ignore[misc, no-any-return]

    async def astream(self, prompt: BasePromptTemplate, **prompt_args: Any) -> TokenAsyncGen:
        with template_references(prompt_args) as arguments:
            return await super().astream(prompt, **arguments)  # type: ignore[misc, no-any-return]


class AntiphonLLM(_HidingReferences, _LLMMethods):
    """A local LLM with lossless speculative decoding from the prompt and from references.

    The prompt is always a source of drafts. References come from the call (``references=[...]`` with texts or nodes),
    from messages (``additional_kwargs["references"]``), and from the arguments of a prompt template
    (``synthesize(question, nodes, references=nodes)``). A chat answer cites the references that it was copied from in
    citation blocks; ``raw`` contains usage, finish reason and step statistics.

    A call accepts ``stop``, ``max_tokens``, ``temperature``, ``top_p``, ``top_k``, ``min_p``, ``repetition_penalty``,
    ``seed``, ``drafter``, ``num_draft_tokens``, ``thinking``, ``max_thinking_tokens``, ``template_variables`` and
    ``timeout``. Unknown parameters raise a `TypeError`. A chat answer has the model's thinking in a `ThinkingBlock`.
    Fields: see `GenerationFields`.
    """
