"""Requests as what a language model is given: messages, tools, references, parameters. Decodes nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from antiphon.accel.decoding.grammar import JsonSchema
from antiphon.accel.text.forced_tool_calls import offered
from antiphon.accel.text.messages import Conversation, Message, PromptInput
from antiphon.pipelines.server.errors import refused_error
from antiphon.pipelines.server.requests import (
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    SamplingRequest,
    SourceText,
    TextPart,
)
from antiphon.retrieval import Passage

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation as it is put to the model; ``tools`` are the names of those that it may call.

    ``opening`` is how the answer begins because a tool has to be called: it is read with the answer.
    """

    content: Conversation
    parameters: dict[str, Any] = field(default_factory=dict)
    tools: frozenset[str] = frozenset()
    opening: str = ""


def chat_prompt_of(request: ChatRequest, tokenizer: PreTrainedTokenizerBase) -> ChatPrompt:
    """The conversation with its tools, and what of the request its form depends on.

    Raises:
        ApiError: a part of a message is no text, or two wishes do not go together.
        ValueError: the choice of a tool is none, or no template writes these tools.
    """
    messages = plain_messages(request.messages)
    schema = request.response_format.wanted if request.response_format else None
    if request.continue_final_message:
        if messages[-1]["role"] != ASSISTANT:
            raise refused_error("continue_final_message", "The last message is not the assistant's; it cannot go on.")
        conversation = Conversation(messages[:-1], (), str(messages[-1]["content"]))
        return ChatPrompt(conversation, {"json_schema": schema})
    tools = [tool.model_dump(exclude_none=True) for tool in request.tools or ()]
    choice = request.tool_choice
    wanted_tool = choice if choice is None or isinstance(choice, str) else choice.function.name
    offer = offered(tokenizer, messages, tools, wanted_tool)
    if offer.schema is not None and schema is not None:
        raise refused_error("response_format", "A tool has to be called, so the answer can have no other form.")
    wanted: JsonSchema | dict[str, Any] | None = offer.schema or schema
    conversation = Conversation(offer.messages, offer.tools, offer.opening)
    return ChatPrompt(conversation, {"json_schema": wanted}, offer.names, offer.opening)


def plain_messages(messages: Sequence[ChatMessage]) -> list[Message]:
    """The messages as chat templates take them: texts, and calls with their arguments read."""
    return [_plain(message, place) for place, message in enumerate(messages)]


def _plain(message: ChatMessage, place: int) -> Message:
    role = "system" if message.role == "developer" else message.role
    plain: dict[str, Any] = {"role": role, "content": joined_text(message.content, f"messages.{place}.content")}
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        plain["tool_calls"] = [
            {
                "id": call.id or "",
                "type": "function",
                "function": {"name": name, "arguments": _read(call.function.arguments)},
            }
            for call in message.tool_calls
            for name in [call.function.name]
        ]
    return plain


def _read(arguments: str) -> Any:
    try:
        return json.loads(arguments or "{}")
    except json.JSONDecodeError:
        return arguments


def joined_text(content: str | Sequence[TextPart] | None, param: str) -> str:
    """The text of a content, its parts joined.

    Raises:
        ApiError: a part is no text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.text is None or part.type not in ("text", "input_text", "output_text"):
            raise refused_error(param, f"{param} has a part of the type {part.type!r}; this server reads texts alone.")
    return "".join(part.text or "" for part in content)


def completion_prompts(request: CompletionRequest, tokenizer: PreTrainedTokenizerBase) -> list[PromptInput]:
    """The texts to be continued; token ids as the text that they are."""
    given = request.prompt
    if isinstance(given, str):
        return [given]
    if given and isinstance(given[0], int):
        return [str(tokenizer.decode(given))]
    return [each if isinstance(each, str) else str(tokenizer.decode(each)) for each in given]


def sampling_parameters(request: SamplingRequest) -> dict[str, Any]:
    """How the text is to be chosen, as `LanguageModel.stream` takes it; what is left out has its default."""
    top_k = request.top_k
    given = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": 0 if top_k == -1 else top_k,
        "min_p": request.min_p,
        "repetition_penalty": request.repetition_penalty,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "logit_bias": request.logit_bias,
        "stop": request.stops or None,
        "seed": request.seed,
        "drafter": "nothing" if request.plain else None,
    }
    return {name: value for name, value in given.items() if value is not None}


def cited_passages(references: Sequence[str | SourceText]) -> tuple[Passage, ...]:
    """The references of a request as passages that can be cited."""
    sources = [each if isinstance(each, SourceText) else SourceText(text=each) for each in references]
    return tuple(_passage(source, place) for place, source in enumerate(sources, start=1) if source.text)


def _passage(source: SourceText, place: int) -> Passage:
    metadata = {name: value for name, value in (("title", source.title), ("url", source.url)) if value}
    name = source.url or source.title or f"reference {place}"
    text = source.text
    made = Passage.at(name, 0, text, metadata)
    return made if source.id is None else Passage(text, source.id, name, 0, len(text), None, metadata)
