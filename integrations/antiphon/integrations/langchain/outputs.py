"""Converts completions to LangChain's messages, chunks, citations and usage."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, InvalidToolCall, ToolCall
from langchain_core.messages.ai import OutputTokenDetails, UsageMetadata
from langchain_core.messages.block_translators import register_translator
from langchain_core.messages.content import Citation, ContentBlock
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.utils.json import parse_partial_json

from antiphon.accel import Completion
from antiphon.integrations.langchain.chat_messages import REASONING
from antiphon.integrations.model_call import AnswerState, ModelCall
from antiphon.pipelines.markers import cite_all
from antiphon.retrieval import Passage

PROVIDER = "antiphon"
CITATIONS = "citations"
"""The key in an answer's ``additional_kwargs`` that holds its citations."""


def ai_message(call: ModelCall, completion: Completion) -> AIMessage:
    """Return the whole answer as a message."""
    parsed = call.parse_output(completion)
    message = AIMessage(
        content=parsed.content,
        tool_calls=[ToolCall(name=each.name, args=dict(each.arguments), id=each.id) for each in parsed.calls],
        invalid_tool_calls=[
            InvalidToolCall(
                name=None, args=_unreadable(each.text), id=each.id, error=each.error, type="invalid_tool_call"
            )
            for each in parsed.malformed
        ],
        **_message_fields(call, parsed.content, completion),
    )
    if completion.reasoning:
        message.additional_kwargs[REASONING] = completion.reasoning
    return message


def message_chunk(call: ModelCall, state: AnswerState) -> AIMessageChunk:
    """Return the chunk of a streamed answer for one `AnswerState`.

    The last chunk has the rest of the text, tool calls, citations, usage and metadata.
    """
    if state.completion is None:
        thinking = {REASONING: state.thinking_delta} if state.thinking_delta else {}
        return AIMessageChunk(content=state.delta, additional_kwargs=thinking)
    parsed = call.parse_output(state.completion)
    calls = [(each.name, json.dumps(each.arguments, ensure_ascii=False), each.id) for each in parsed.calls]
    broken = [(None, _unreadable(each.text), each.id) for each in parsed.malformed]
    return AIMessageChunk(
        content=state.delta,
        tool_call_chunks=[
            tool_call_chunk(name=name, args=text, id=identifier, index=index)
            for index, (name, text, identifier) in enumerate([*calls, *broken])
        ],
        chunk_position="last",
        **_message_fields(call, parsed.content, state.completion),
    )


def annotate(text: str, passages: Sequence[Passage], num_marked: int = 0) -> list[Citation]:
    """Return LangChain citations for the spans of a text that were copied from passages, and for the text's markers.

    Args:
        num_marked: the first ``num_marked`` passages have a number in the prompt.
    """
    return [
        Citation(
            type="citation",
            title=found.source,
            start_index=found.start,
            end_index=found.end,
            cited_text=found.text,
            extras={
                "document_id": passages[found.passage - 1].id,
                "passage": found.passage,
                "source_start": found.source_start,
                "source_end": found.source_end,
                **({"kind": "marker", "unsupported": found.unsupported} if found.kind == "marker" else {}),
                **({"location": found.location} if found.location else {}),
            },
        )
        for found in cite_all(text, passages, num_marked)
    ]


def usage(completion: Completion) -> UsageMetadata:
    """Return the token counts as LangChain's `UsageMetadata`."""
    used = completion.usage
    counts = UsageMetadata(
        input_tokens=used.prompt_tokens, output_tokens=used.completion_tokens, total_tokens=used.total_tokens
    )
    if used.reasoning_tokens:
        counts["output_token_details"] = OutputTokenDetails(reasoning=used.reasoning_tokens)
    return counts


def metadata(call: ModelCall, completion: Completion) -> dict[str, Any]:
    """Return the response metadata: model name, finish reason and step statistics."""
    return {"model_name": call.model, **call.facts(completion)}


def content_blocks(answer: AIMessage) -> list[ContentBlock]:
    """Return the answer as standard content blocks, with citations as annotations of its text."""
    facts = {key: value for key, value in answer.response_metadata.items() if key != "model_provider"}
    blocks: list[Any] = [*answer.model_copy(update={"response_metadata": facts}).content_blocks]
    if citations := answer.additional_kwargs.get(CITATIONS):
        if not any(block["type"] == "text" for block in blocks):
            blocks.insert(0, {"type": "text", "text": ""})  # the last chunk of a stream may have no text
        text = next(block for block in blocks if block["type"] == "text")
        text["annotations"] = list(citations)
    return blocks


def _unreadable(text: str) -> str:
    """Return the text of a malformed call; as a JSON string if LangChain would parse the text as arguments."""
    try:
        is_call = not text or isinstance(parse_partial_json(text), dict)
    except ValueError:
        is_call = False
    return json.dumps(text, ensure_ascii=False) if is_call else text


register_translator(PROVIDER, content_blocks, content_blocks)


def _message_fields(call: ModelCall, text: str, completion: Completion) -> dict[str, Any]:
    found = annotate(text, call.passages, call.num_marked)
    return {
        "additional_kwargs": {CITATIONS: found} if found else {},
        "usage_metadata": usage(completion),
        "response_metadata": {**metadata(call, completion), "model_provider": PROVIDER},
    }
