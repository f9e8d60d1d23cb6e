"""An Antiphon language model as a LlamaIndex LLM."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from dataclasses import replace
from functools import wraps
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
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.tools.types import BaseTool
from pydantic import ConfigDict

from antiphon.accel import Conversation
from antiphon.accel.text.messages import PromptInput
from antiphon.accel.text.parameters import Settings
from antiphon.accel.text.tool_choice import NONE, OPTIONAL, supports_tools
from antiphon.integrations.generation_fields import DESCRIBE_SCHEMA, GenerationFields
from antiphon.integrations.llama_index.chat_messages import arguments_of, chat_messages
from antiphon.integrations.llama_index.nodes import REFERENCES_OF_NODES
from antiphon.integrations.llama_index.outputs import (
    INVALID,
    Model,
    chat_response,
    chat_state,
    completion_response,
    completion_state,
    partial_object,
)
from antiphon.integrations.model_call import ModelCall
from antiphon.integrations.references import REFERENCES, HiddenReferences
from antiphon.retrieval import Passage

TOOL_ARGUMENTS = ("tool_required", "tool_choice", "allow_parallel_tool_calls")
"""Arguments about tools that LlamaIndex programs pass. Calls with a schema drop them."""


class AntiphonLLM(GenerationFields, FunctionCallingLLM):
    """A local LLM with lossless speculative decoding from the prompt and from references.

    The prompt is always a source of drafts. References come from the call (``references=[...]`` with texts or nodes),
    from messages (``additional_kwargs["references"]``), and from the arguments of a prompt template
    (``synthesize(question, nodes, references=nodes)``). A chat answer has a citation block for each
    span that was copied from a reference; ``raw`` contains usage, finish reason and step
    statistics.

    A call accepts ``stop``, ``max_tokens``, ``temperature``, ``top_p``, ``top_k``, ``min_p``, ``repetition_penalty``,
    ``seed``, ``drafter``, ``num_draft_tokens``, ``thinking``, ``max_thinking_tokens``, ``template_variables``,
    ``timeout`` and ``model``. A model named in a call is loaded when it is first used, and kept. Unknown parameters
    raise a `TypeError`. A chat answer has the model's thinking in a `ThinkingBlock`. Fields: see `GenerationFields`.
    """

    model_config = ConfigDict(extra="forbid")

    @classmethod
    def class_name(cls) -> str:
        """The name under which LlamaIndex saves the class."""
        return "AntiphonLLM"

    @property
    def metadata(self) -> LLMMetadata:
        """Context window, maximum length of answers, and whether the model supports messages and tools."""
        window = self.language_model.context_window
        known: dict[str, Any] = {} if window is None else {"context_window": window}
        return LLMMetadata(
            **known,
            num_output=self.max_tokens or Settings().max_new_tokens,
            is_chat_model=self.language_model.takes_messages,
            is_function_calling_model=supports_tools(self.language_model.tokenizer),
            model_name=self.model,
        )

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Answer a conversation. See `LLM.chat`."""
        call = self._chat_call(messages, kwargs)
        return chat_response(call, call.complete())

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """Stream the answer to a conversation. See `LLM.stream_chat`."""
        call = self._chat_call(messages, kwargs)
        return (chat_state(call, state) for state in call.states())

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Answer a conversation asynchronously. See `LLM.achat`."""
        call = self._chat_call(messages, kwargs)
        return chat_response(call, await call.acomplete())

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        """Stream the answer to a conversation asynchronously. See `LLM.astream_chat`."""
        call = self._chat_call(messages, kwargs)
        return (chat_state(call, state) async for state in call.astates())

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Answer a text; if ``formatted`` is true, continue the text. See `LLM.complete`."""
        call = self._text_call(prompt, formatted, kwargs)
        return completion_response(call, call.complete())

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        """Stream the answer to a text. See `LLM.stream_complete`."""
        call = self._text_call(prompt, formatted, kwargs)
        return (completion_state(call, state) for state in call.states() if state.delta or state.completion)

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Answer a text asynchronously. See `LLM.acomplete`."""
        call = self._text_call(prompt, formatted, kwargs)
        return completion_response(call, await call.acomplete())

    @llm_completion_callback()
    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        """Stream the answer to a text asynchronously. See `LLM.astream_complete`."""
        call = self._text_call(prompt, formatted, kwargs)
        return (completion_state(call, state) async for state in call.astates() if state.delta or state.completion)

    def structured_predict(self, output_cls: type[Model], *given: Any, **named: Any) -> Model:
        """Generate an object of a pydantic class, constrained to its JSON schema. See `LLM.structured_predict`."""
        answer = self.chat(**self._schema_request(output_cls, *given, **named))
        return output_cls.model_validate_json(answer.message.content or "")

    async def astructured_predict(self, output_cls: type[Model], *given: Any, **named: Any) -> Model:
        """Generate an object of a pydantic class asynchronously. See `LLM.astructured_predict`."""
        answer = await self.achat(**self._schema_request(output_cls, *given, **named))
        return output_cls.model_validate_json(answer.message.content or "")

    def _structured_stream_call(self, output_cls: type[Model], *given: Any, **named: Any) -> Generator[Any, None, None]:
        text = ""
        for state in self.stream_chat(**self._schema_request(output_cls, *given, **named)):
            text = state.message.content or ""
            if (known := partial_object(text, output_cls)) is not None:
                yield known
        yield output_cls.model_validate_json(text)

    async def _structured_astream_call(
        self, output_cls: type[Model], *given: Any, **named: Any
    ) -> AsyncGenerator[Any, None]:
        async def objects() -> AsyncGenerator[Any, None]:
            text = ""
            async for state in await self.astream_chat(**self._schema_request(output_cls, *given, **named)):
                text = state.message.content or ""
                if (known := partial_object(text, output_cls)) is not None:
                    yield known
            yield output_cls.model_validate_json(text)

        return objects()

    def _schema_request(
        self,
        output_cls: type[Model],
        prompt: BasePromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> dict[str, Any]:
        """Return the messages of a template and the arguments that constrain the answer to a schema."""
        kept = {name: value for name, value in (llm_kwargs or {}).items() if name not in TOOL_ARGUMENTS}
        messages = self._get_messages(prompt, **prompt_args)
        return {**kept, "messages": messages, "json_schema": output_cls.model_json_schema(), DESCRIBE_SCHEMA: True}

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        """Return the tool calls of an answer.

        Raises:
            ValueError: the answer has no tool call that can be parsed.
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
            "parallel_tool_calls": allow_parallel_tool_calls,
            **kwargs,
        }

    def _chat_call(self, messages: Sequence[ChatMessage], given: dict[str, Any]) -> ModelCall:
        """Return a call with messages. For a model without a chat template the prompt is one text."""
        call = self.chat_call(chat_messages(messages), REFERENCES_OF_NODES.of_call(given, messages), given)
        if self.language_model.takes_messages or not isinstance(call.prompt, Conversation):
            return call
        turns = [ChatMessage(turn["content"], role=turn["role"]) for turn in call.prompt.messages]
        return replace(call, prompt=str(self.messages_to_prompt(turns)))  # type: ignore[misc]  # a validator has set it

    def _text_call(self, prompt: str, formatted: bool, given: dict[str, Any]) -> ModelCall:
        """Return a call with a text. For a chat model, an unformatted text becomes a user message."""
        passages = (*REFERENCES_OF_NODES.of_call(given), *getattr(prompt, "passages", ()))
        written: PromptInput = str(prompt)
        if not formatted and self.language_model.takes_messages:
            written = Conversation([{"role": "user", "content": prompt}])
        elif not formatted:
            written = str(self.completion_to_prompt(prompt))  # type: ignore[misc]
        return self.text_call(written, passages, given)

    def _get_messages(self, prompt: BasePromptTemplate, **prompt_args: Any) -> list[ChatMessage]:
        messages = list(super()._get_messages(prompt, **prompt_args))
        if messages and (passages := REFERENCES_OF_NODES.of_call(prompt_args, messages[-1:])):
            carried = {**messages[-1].additional_kwargs, REFERENCES: HiddenReferences(passages)}
            messages[-1] = messages[-1].model_copy(update={"additional_kwargs": carried})
        return messages

    def _get_prompt(self, prompt: BasePromptTemplate, **prompt_args: Any) -> str:
        formatted = _FormattedPrompt(super()._get_prompt(prompt, **prompt_args))
        formatted.passages = REFERENCES_OF_NODES.of_call(prompt_args)
        return formatted


class _FormattedPrompt(str):
    """The text of a filled prompt template, and the references among the template's arguments."""

    passages: tuple[Passage, ...] = ()


def _hiding(method: Callable[..., Any]) -> Callable[..., Any]:
    """Hide the references of a call before LlamaIndex passes its arguments to event handlers and spans."""

    @wraps(method)
    def hidden(self: AntiphonLLM, *given: Any, **named: Any) -> Any:
        if "messages" in named:
            named["messages"] = _hide(named["messages"])
        return method(self, *map(_hide, given), **REFERENCES_OF_NODES.hidden(named))

    return hidden


def _hide(given: Any) -> Any:
    """Hide the references in messages; return any other argument unchanged."""
    if isinstance(given, list | tuple):
        return [_hide(each) for each in given]
    if isinstance(given, ChatMessage) and REFERENCES in given.additional_kwargs:
        return given.model_copy(update={"additional_kwargs": REFERENCES_OF_NODES.hidden(given.additional_kwargs)})
    return given


for _name in (
    *("chat", "achat", "stream_chat", "astream_chat"),
    *("complete", "acomplete", "stream_complete", "astream_complete"),
    *("predict", "apredict", "stream", "astream"),
    *("structured_predict", "astructured_predict", "stream_structured_predict", "astream_structured_predict"),
):
    setattr(AntiphonLLM, _name, _hiding(getattr(AntiphonLLM, _name)))
