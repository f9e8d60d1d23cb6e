"""Converts completions to LlamaIndex's responses, tool calls, citations and usage."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CitationBlock,
    CompletionResponse,
    MessageRole,
    TextBlock,
    ToolCallBlock,
)

from antiphon.accel import Completion
from antiphon.integrations.model_call import ModelCall
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
    message = _message(parsed.content)
    message.blocks += [
        ToolCallBlock(tool_call_id=each.id, tool_name=each.name, tool_kwargs=dict(each.arguments))
        for each in parsed.calls
    ]
    message.blocks += citation_blocks(parsed.content, call.passages)
    if parsed.malformed:
        message.additional_kwargs[INVALID] = [{"text": each.text, "error": each.error} for each in parsed.malformed]
    return ChatResponse(message=message, delta=delta, **_response_fields(call, completion))


def chat_piece(text: str, delta: str) -> ChatResponse:
    """Return the current state of a streamed chat answer.

    Args:
        text: the text so far.
        delta: its new part.
    """
    return ChatResponse(message=_message(text), delta=delta)


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


def completion_piece(text: str, delta: str) -> CompletionResponse:
    """Return the current state of a streamed text.

    Args:
        text: the text so far.
        delta: its new part.
    """
    return CompletionResponse(text=text, delta=delta)


def _message(text: str) -> ChatMessage:
    return ChatMessage(role=MessageRole.ASSISTANT, blocks=[TextBlock(text=text)])


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
    }
    return {"raw": raw, "additional_kwargs": usage}
