"""What a completion becomes in LlamaIndex's words: responses, tool calls, citations, usage."""

from __future__ import annotations

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
from antiphon.integrations.call import Call
from antiphon.pipelines import cite
from antiphon.retrieval import Passage

INVALID = "invalid_tool_calls"
"""The key of an answer's ``additional_kwargs`` that holds calls which cannot be read: their text, and why."""


def chat_response(call: Call, completion: Completion, delta: str | None = None) -> ChatResponse:
    """The whole answer, as a message of text, calls of tools and citations."""
    said = call.said(completion)
    message = _message(said.content)
    message.blocks += [
        ToolCallBlock(tool_call_id=each.id, tool_name=each.name, tool_kwargs=dict(each.arguments))
        for each in said.calls
    ]
    message.blocks += citation_blocks(said.content, call.passages)
    if said.broken:
        message.additional_kwargs[INVALID] = [{"text": each.text, "error": each.error} for each in said.broken]
    return ChatResponse(message=message, delta=delta, **_facts(call, completion))


def chat_piece(text: str, delta: str) -> ChatResponse:
    """An answer that is still growing."""
    return ChatResponse(message=_message(text), delta=delta)


def completion_response(call: Call, completion: Completion, delta: str | None = None) -> CompletionResponse:
    """The whole text."""
    return CompletionResponse(text=call.said(completion).content, delta=delta, **_facts(call, completion))


def completion_piece(text: str, delta: str) -> CompletionResponse:
    """A text that is still growing."""
    return CompletionResponse(text=text, delta=delta)


def _message(text: str) -> ChatMessage:
    return ChatMessage(role=MessageRole.ASSISTANT, blocks=[TextBlock(text=text)])


def citation_blocks(text: str, passages: Sequence[Passage]) -> list[CitationBlock]:
    """Which spans of a text stand verbatim in one of these passages, in LlamaIndex' words."""
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
            },
        )
        for found in cite(text, passages)
    ]


def _facts(call: Call, completion: Completion) -> dict[str, Any]:
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
