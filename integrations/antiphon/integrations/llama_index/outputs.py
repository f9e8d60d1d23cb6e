"""Converts completions to LlamaIndex's responses, tool calls, citations and usage."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CitationBlock,
    CompletionResponse,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)

from antiphon.accel import Completion
from antiphon.integrations.model_call import ModelCall, VisibleText
from antiphon.pipelines import cite
from antiphon.retrieval import Passage

INVALID = "invalid_tool_calls"
"""The key in an answer's ``additional_kwargs`` that holds malformed tool calls: their text, and the error."""


def chat_response(call: ModelCall, completion: Completion, delta: str | None = None) -> ChatResponse:
    """Return the whole answer as a message with text, tool calls and citations.

    Args:
        call: the call that was answered.
        completion: its completion.
        delta: the last new part of a streamed answer.
    """
    parsed = call.parse_output(completion)
    message = _message(parsed.content, completion.reasoning)
    message.blocks += [
        ToolCallBlock(tool_call_id=each.id, tool_name=each.name, tool_kwargs=dict(each.arguments))
        for each in parsed.calls
    ]
    message.blocks += citation_blocks(parsed.content, call.passages)
    if parsed.malformed:
        message.additional_kwargs[INVALID] = [{"text": each.text, "error": each.error} for each in parsed.malformed]
    return ChatResponse(message=message, delta=delta, **_response_fields(call, completion))


class AnswerState(NamedTuple):
    """The state of a streamed answer.

    Attributes:
        text: the text so far.
        delta: its new part.
        reasoning: the thinking so far.
        thinking_delta: its new part.
        completion: the completion, in the last state.
    """

    text: str
    delta: str
    reasoning: str = ""
    thinking_delta: str = ""
    completion: Completion | None = None


def last_state(call: ModelCall, completion: Completion, visible: VisibleText) -> AnswerState:
    """Return the last state of a streamed answer.

    Args:
        call: the call that was answered.
        completion: its completion.
        visible: the text that earlier states contained.
    """
    content = call.parse_output(completion).content
    return AnswerState(content, content[len(visible.shown) :], completion=completion)


def chat_state(call: ModelCall, state: AnswerState) -> ChatResponse:
    """Return the state of a streamed chat answer.

    Args:
        call: the call that is answered.
        state: the state.
    """
    if state.completion is not None:
        return chat_response(call, state.completion, state.delta)
    thought = {"thinking_delta": state.thinking_delta} if state.thinking_delta else {}
    return ChatResponse(message=_message(state.text, state.reasoning), delta=state.delta, additional_kwargs=thought)


def completion_response(call: ModelCall, completion: Completion, delta: str | None = None) -> CompletionResponse:
    """Return the whole text.

    Args:
        call: the call that was answered.
        completion: its completion.
        delta: the last new part of a streamed text.
    """
    return CompletionResponse(
        text=call.parse_output(completion).content, delta=delta, **_response_fields(call, completion)
    )


def completion_state(call: ModelCall, state: AnswerState) -> CompletionResponse:
    """Return the state of a streamed text, which has no place for thinking.

    Args:
        call: the call that is answered.
        state: the state.
    """
    if state.completion is not None:
        return completion_response(call, state.completion, state.delta)
    return CompletionResponse(text=state.text, delta=state.delta)


def _message(text: str, reasoning: str = "") -> ChatMessage:
    thought = [ThinkingBlock(content=reasoning)] if reasoning else []
    return ChatMessage(role=MessageRole.ASSISTANT, blocks=[*thought, TextBlock(text=text)])


def citation_blocks(text: str, passages: Sequence[Passage]) -> list[CitationBlock]:
    """Return the spans of a text that were copied from passages, as citation blocks.

    Args:
        text: the text to annotate.
        passages: the passages it may quote.
    """
    return [
        CitationBlock(
            cited_content=TextBlock(text=found.text),
            source=passages[found.passage - 1].id,
            title=found.source,
            additional_location_info={
                "start": found.start,
                "end": found.end,
                "source_start": found.source_start,
                "source_end": found.source_end,
                **_page(found.location),
            },
        )
        for found in cite(text, passages)
    ]


def _page(location: str) -> dict[str, int]:
    """Return the first page of a location, because LlamaIndex' locations are numbers."""
    found = re.match(r"page (\d+)", location)
    return {"page": int(found[1])} if found else {}


def _response_fields(call: ModelCall, completion: Completion) -> dict[str, Any]:
    used = completion.usage
    usage = {
        "prompt_tokens": used.prompt_tokens,
        "completion_tokens": used.completion_tokens,
        "total_tokens": used.total_tokens,
    }
    raw = {
        "usage": usage,
        "model": call.model,
        "finish_reason": completion.finish_reason,
        "steps": completion.steps.as_dict(),
        **({"ended_in_thinking": True} if completion.ended_in_thinking else {}),
    }
    if used.reasoning_tokens:
        usage["reasoning_tokens"] = used.reasoning_tokens
    return {"raw": raw, "additional_kwargs": usage}
