"""An LLM of LlamaIndex that is an Antiphon language model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
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
from llama_index.core.types import TokenAsyncGen, TokenGen
from pydantic import ConfigDict

from antiphon.accel import Completion, Conversation
from antiphon.accel.text.messages import Prompt, prompt_tokens
from antiphon.accel.text.parameters import Settings
from antiphon.integrations.call import Call, Showing
from antiphon.integrations.fields import GenerationFields
from antiphon.integrations.llama_index.answers import (
    chat_piece,
    chat_response,
    completion_piece,
    completion_response,
)
from antiphon.integrations.llama_index.messages import arguments_of, chat_messages
from antiphon.integrations.llama_index.references import bare, hidden, of_template
from antiphon.integrations.reading import AsyncReading
from antiphon.integrations.tool_calls import names, offer
from antiphon.integrations.unseen import REFERENCES

Piece = tuple[str, str, Completion | None]
"""Of an answer that grows: the text so far, what is new of it, and at the end the completion."""


class _Answering(GenerationFields, FunctionCallingLLM):
    """Everything that an LLM of LlamaIndex can be asked; references come as `Unseen` alone."""

    model_config = ConfigDict(extra="forbid")

    @classmethod
    def class_name(cls) -> str:
        """The name that LlamaIndex saves it under."""
        return "AntiphonLLM"

    @property
    def metadata(self) -> LLMMetadata:
        """What LlamaIndex goes by: the window, and whether the model takes messages and calls tools."""
        window = self.language_model.context_window
        known: dict[str, Any] = {} if window is None else {"context_window": window}
        return LLMMetadata(
            **known,
            num_output=self.max_tokens or Settings().max_new_tokens,
            is_chat_model=self._takes_messages,
            is_function_calling_model=self._writes_tools(),
            model_name=self.model,
        )

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        call = self._call(self._conversation(messages, kwargs), kwargs)
        return chat_response(call, call.read())

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        call = self._call(self._conversation(messages, kwargs), kwargs)

        def answering() -> ChatResponseGen:
            for text, new, done in self._pieces(call):
                yield chat_response(call, done, new) if done else chat_piece(text, new)

        return answering()

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        call = self._call(self._conversation(messages, kwargs), kwargs)
        return chat_response(call, await self._aread(call))

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        call = self._call(self._conversation(messages, kwargs), kwargs)

        async def answering() -> ChatResponseAsyncGen:
            async for text, new, done in self._apieces(call):
                yield chat_response(call, done, new) if done else chat_piece(text, new)

        return answering()

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        call = self._call(self._text(prompt, formatted), kwargs)
        return completion_response(call, call.read())

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        call = self._call(self._text(prompt, formatted), kwargs)

        def answering() -> CompletionResponseGen:
            for text, new, done in self._pieces(call):
                yield completion_response(call, done, new) if done else completion_piece(text, new)

        return answering()

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        call = self._call(self._text(prompt, formatted), kwargs)
        return completion_response(call, await self._aread(call))

    @llm_completion_callback()
    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        call = self._call(self._text(prompt, formatted), kwargs)

        async def answering() -> CompletionResponseAsyncGen:
            async for text, new, done in self._apieces(call):
                yield completion_response(call, done, new) if done else completion_piece(text, new)

        return answering()

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        """The tools that an answer calls.

        Raises:
            ValueError: it calls none, where one was expected.
        """
        blocks = [block for block in response.message.blocks if isinstance(block, ToolCallBlock)]
        if error_on_no_tool_call and not blocks:
            raise ValueError(f"The answer calls no tool: {response.message.content!r}.")
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
        choice = "any" if tool_required else kwargs.pop("tool_choice", None)
        return {"messages": messages, "tools": offered, "tool_choice": choice, **kwargs}

    def _conversation(self, messages: Sequence[ChatMessage], given: dict[str, Any]) -> Prompt:
        """The prompt of messages: by the chat template, or where there is none as one text."""
        wanted, choice = given.pop("tools", None) or (), given.pop("tool_choice", None)
        if not self._takes_messages:
            return str(self.messages_to_prompt(messages))  # type: ignore[misc]  # a validator has set it
        return Conversation(chat_messages(messages), *offer(self.language_model.tokenizer, wanted, choice))

    def _text(self, prompt: str, formatted: bool) -> Prompt:
        """The prompt of a text: a model for chats is asked it by a user, unless it is written out already."""
        if self._takes_messages and not formatted:
            return Conversation([{"role": "user", "content": prompt}])
        return prompt if formatted else str(self.completion_to_prompt(prompt))  # type: ignore[misc]

    def _call(self, prompt: Prompt, given: dict[str, Any]) -> Call:
        passages = getattr(given.get(REFERENCES), "passages", ())
        stop = given.get("stop")
        kept = {name: value for name, value in given.items() if name not in (REFERENCES, "stop")}
        parameters, timeout = self.parameters(stop, kept)
        tools, opening = (prompt.tools, prompt.opening) if isinstance(prompt, Conversation) else ((), "")
        return Call(self.language_model, self.model, prompt, passages, parameters, timeout, names(tools), opening)

    def _pieces(self, call: Call) -> Iterator[Piece]:
        said = Showing(call)
        with call.begin() as stream:
            for piece in stream:
                if new := said.push(piece):
                    yield said.shown, new, None
        content = call.said(stream.completion).content
        yield content, content[len(said.shown) :], stream.completion

    async def _apieces(self, call: Call) -> AsyncIterator[Piece]:
        said = Showing(call)
        async with AsyncReading(call.begin) as reading:
            async for piece in reading:
                if new := said.push(piece):
                    yield said.shown, new, None
        content = call.said(reading.completion).content
        yield content, content[len(said.shown) :], reading.completion

    async def _aread(self, call: Call) -> Completion:
        async with AsyncReading(call.begin) as reading:
            async for _ in reading:
                pass
        return reading.completion

    @property
    def _takes_messages(self) -> bool:
        return self.language_model.tokenizer.chat_template is not None

    def _writes_tools(self) -> bool:
        """Whether the chat template tells the model of tools."""
        tool = {"type": "function", "function": {"name": "any", "description": "", "parameters": {}}}
        try:
            prompt_tokens(Conversation([{"role": "user", "content": "?"}], [tool]), self.language_model.tokenizer)
        except ValueError:
            return False
        return True


class _Hiding:
    """References out of sight before LlamaIndex tells its event handlers of a call."""

    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return super().chat(bare(messages), **hidden(kwargs, messages))  # type: ignore[misc, no-any-return]

    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        return super().stream_chat(bare(messages), **hidden(kwargs, messages))  # type: ignore[misc, no-any-return]

    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return await super().achat(bare(messages), **hidden(kwargs, messages))  # type: ignore[misc, no-any-return]

    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        return await super().astream_chat(bare(messages), **hidden(kwargs, messages))  # type: ignore[misc, no-any-return]

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return super().complete(prompt, formatted=formatted, **hidden(kwargs))  # type: ignore[misc, no-any-return]

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        return super().stream_complete(prompt, formatted=formatted, **hidden(kwargs))  # type: ignore[misc, no-any-return]

    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return await super().acomplete(prompt, formatted=formatted, **hidden(kwargs))  # type: ignore[misc, no-any-return]

    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        return await super().astream_complete(prompt, formatted=formatted, **hidden(kwargs))  # type: ignore[misc, no-any-return]

    def predict(self, prompt: BasePromptTemplate, **prompt_args: Any) -> str:
        with of_template(prompt_args) as arguments:
            return super().predict(prompt, **arguments)  # type: ignore[misc, no-any-return]

    def stream(self, prompt: BasePromptTemplate, **prompt_args: Any) -> TokenGen:
        with of_template(prompt_args) as arguments:
            return super().stream(prompt, **arguments)  # type: ignore[misc, no-any-return]

    async def apredict(self, prompt: BasePromptTemplate, **prompt_args: Any) -> str:
        with of_template(prompt_args) as arguments:
            return await super().apredict(prompt, **arguments)  # type: ignore[misc, no-any-return]

    async def astream(self, prompt: BasePromptTemplate, **prompt_args: Any) -> TokenAsyncGen:
        with of_template(prompt_args) as arguments:
            return await super().astream(prompt, **arguments)  # type: ignore[misc, no-any-return]


class AntiphonLLM(_Hiding, _Answering):
    """A local LLM whose answers are drafted from what they may quote: the same words, in fewer forwards.

    The prompt itself is always a source of drafts. Others are given in a call, ``references=[...]`` with texts or
    nodes, ride on a message (``additional_kwargs["references"]``), or come as an argument of a prompt's template
    (``synthesize(question, nodes, references=nodes)``). A chat's answer says where it repeats these verbatim, in
    citation blocks; ``raw`` has usage, finish reason and the summary of steps.

    Per call it takes ``stop``, ``max_tokens``, ``temperature``, ``top_p``, ``top_k``, ``min_p``,
    ``repetition_penalty``, ``seed``, ``drafter``, ``rows`` and ``timeout``; a parameter of another name is an error.
    """
