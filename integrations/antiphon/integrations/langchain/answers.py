"""What a completion becomes in LangChain's words: messages, chunks, citations, usage."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, InvalidToolCall, ToolCall
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.block_translators import register_translator
from langchain_core.messages.content import Citation, ContentBlock
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.utils.json import parse_partial_json

from antiphon.accel import Completion
from antiphon.integrations.call import Call
from antiphon.pipelines import cite
from antiphon.retrieval import Passage

PROVIDER = "antiphon"
CITATIONS = "citations"
"""The key of an answer's ``additional_kwargs`` under which its citations stand."""


def message(call: Call, completion: Completion) -> AIMessage:
    """The whole answer."""
    said = call.said(completion)
    return AIMessage(
        content=said.content,
        tool_calls=[ToolCall(name=each.name, args=dict(each.arguments), id=each.id) for each in said.calls],
        invalid_tool_calls=[
            InvalidToolCall(
                name=None, args=_unreadable(each.text), id=each.id, error=each.error, type="invalid_tool_call"
            )
            for each in said.broken
        ],
        **_facts(call, said.content, completion),
    )


def last_chunk(call: Call, completion: Completion, shown: str) -> AIMessageChunk:
    """The end of a streamed answer, after what was ``shown``: all that is known only now, once."""
    said = call.said(completion)
    calls = [(each.name, json.dumps(each.arguments, ensure_ascii=False), each.id) for each in said.calls]
    broken = [(None, _unreadable(each.text), each.id) for each in said.broken]
    return AIMessageChunk(
        content=said.content[len(shown) :],
        tool_call_chunks=[
            tool_call_chunk(name=name, args=text, id=identifier, index=index)
            for index, (name, text, identifier) in enumerate([*calls, *broken])
        ],
        chunk_position="last",
        **_facts(call, said.content, completion),
    )


def citations(call: Call, text: str) -> list[Citation]:
    """Which spans of the answer stand verbatim in a passage, as LangChain annotates text."""
    return annotated(text, call.passages)


def annotated(text: str, passages: Sequence[Passage]) -> list[Citation]:
    """Which spans of any text stand verbatim in one of these passages, as LangChain annotates text."""
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
            },
        )
        for found in cite(text, passages)
    ]


def usage(completion: Completion) -> UsageMetadata:
    """The tokens read and written."""
    used = completion.usage
    return UsageMetadata(
        input_tokens=used.prompt_tokens, output_tokens=used.completion_tokens, total_tokens=used.total_tokens
    )


def metadata(call: Call, completion: Completion) -> dict[str, Any]:
    """Which model it was, why it ended, and what its forwards came to."""
    return {"model_name": call.model, "finish_reason": completion.finish_reason, "steps": completion.steps.as_dict()}


def content_blocks(answer: AIMessage) -> list[ContentBlock]:
    """The answer as standard content: citations annotate its text."""
    facts = {key: value for key, value in answer.response_metadata.items() if key != "model_provider"}
    blocks: list[Any] = [*answer.model_copy(update={"response_metadata": facts}).content_blocks]
    if citations := answer.additional_kwargs.get(CITATIONS):
        if not any(block["type"] == "text" for block in blocks):
            blocks.insert(0, {"type": "text", "text": ""})  # the last chunk of a stream may have no text of its own
        text = next(block for block in blocks if block["type"] == "text")
        text["annotations"] = list(citations)
    return blocks


def _unreadable(text: str) -> str:
    """The text of a broken call, quoted where a merger of chunks would make it a call that names no tool."""
    try:
        is_call = not text or isinstance(parse_partial_json(text), dict)
    except ValueError:
        is_call = False
    return json.dumps(text, ensure_ascii=False) if is_call else text


register_translator(PROVIDER, content_blocks, content_blocks)


def _facts(call: Call, text: str, completion: Completion) -> dict[str, Any]:
    found = citations(call, text)
    return {
        "additional_kwargs": {CITATIONS: found} if found else {},
        "usage_metadata": usage(completion),
        "response_metadata": {**metadata(call, completion), "model_provider": PROVIDER},
    }
