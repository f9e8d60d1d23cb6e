"""Converts completions to LlamaIndex's responses, tool calls, citations and usage."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar

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
from llama_index.core.program.utils import create_flexible_model
from pydantic import BaseModel
from pydantic_core import from_json

from antiphon.accel import Completion
from antiphon.integrations.model_call import AnswerState, ModelCall
from antiphon.pipelines.markers import cite_all
from antiphon.retrieval import Passage

Model = TypeVar("Model", bound=BaseModel)

INVALID = "invalid_tool_calls"
"""The key in an answer's ``additional_kwargs`` that holds malformed tool calls: their text, and the error."""


def chat_response(call: ModelCall, completion: Completion, delta: str | None = None) -> ChatResponse:
    """Return the whole answer as a message with text, tool calls and citations.

    Args:
        delta: the latest new part of a streamed answer.
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


def chat_state(call: ModelCall, state: AnswerState) -> ChatResponse:
    """Return the state of a streamed chat answer."""
    if state.completion is not None:
        return chat_response(call, state.completion, state.delta)
    thought = {"thinking_delta": state.thinking_delta} if state.thinking_delta else {}
    return ChatResponse(message=_message(state.text, state.reasoning), delta=state.delta, additional_kwargs=thought)


def completion_response(call: ModelCall, completion: Completion, delta: str | None = None) -> CompletionResponse:
    """Return the whole text; ``delta`` is the latest new part of a streamed text."""
    return CompletionResponse(
        text=call.parse_output(completion).content, delta=delta, **_response_fields(call, completion)
    )


def completion_state(call: ModelCall, state: AnswerState) -> CompletionResponse:
    """Return the state of a streamed text, without thinking, because LlamaIndex has no field for it here."""
    if state.completion is not None:
        return completion_response(call, state.completion, state.delta)
    return CompletionResponse(text=state.text, delta=state.delta)


def _message(text: str, reasoning: str = "") -> ChatMessage:
    thought = [ThinkingBlock(content=reasoning)] if reasoning else []
    return ChatMessage(role=MessageRole.ASSISTANT, blocks=[*thought, TextBlock(text=text)])


def citation_blocks(text: str, passages: Sequence[Passage], num_marked: int = 0) -> list[CitationBlock]:
    """Return citation blocks for the spans of a text that were copied from passages, and for the text's markers.

    Args:
        num_marked: the first ``num_marked`` passages have a number in the prompt.
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
                **({"marker": 1, "unsupported": int(found.unsupported)} if found.kind == "marker" else {}),
                **_page(found.location),
            },
        )
        for found in cite_all(text, passages, num_marked)
    ]


def _page(location: str) -> dict[str, int]:
    """Return the number of the first page of a location, because locations in LlamaIndex are numbers."""
    found = re.match(r"page (\d+)", location)
    return {"page": int(found[1])} if found else {}


def _response_fields(call: ModelCall, completion: Completion) -> dict[str, Any]:
    used = completion.usage
    usage = {
        "prompt_tokens": used.prompt_tokens,
        "completion_tokens": used.completion_tokens,
        "total_tokens": used.total_tokens,
    }
    if used.reasoning_tokens:
        usage["reasoning_tokens"] = used.reasoning_tokens
    raw = {"usage": usage, "model": call.model, **call.facts(completion)}
    return {"raw": raw, "additional_kwargs": usage}


def partial_object(text: str, output_cls: type[Model]) -> BaseModel | None:
    """Parse the object from a partial answer; return None if nothing can be parsed yet."""
    try:
        known = from_json(text, allow_partial=True)
    except ValueError:
        return None
    return create_flexible_model(output_cls).model_validate(known) if isinstance(known, dict) else None
