"""Parses tool calls in the output of a model. Independent of models."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

OPEN, CLOSE = "<tool_call>", "</tool_call>"
"""Tags around a tool call in most chat templates (Hermes, Qwen, SmolLM)."""

BARE_PREFIX = "[TOOL_CALLS]"
"""Prefix of tool calls in Mistral's chat templates. Llama's templates have neither tags nor a prefix."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of a model.

    Attributes:
        name: Name of the tool.
        arguments: Arguments by name.
        id: New random id of nine letters or digits, the format that the strictest chat template demands.
    """

    name: str
    arguments: Mapping[str, Any]
    id: str


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """A tool call that cannot be parsed.

    Attributes:
        text: Text between the tags.
        error: Why it cannot be parsed.
        id: New random id.
    """

    text: str
    error: str
    id: str


@dataclass(frozen=True, slots=True)
class ParsedOutput:
    """The output of a model, split into text and tool calls.

    Attributes:
        content: The text.
        calls: The tool calls.
        malformed: Tool calls that cannot be parsed.
    """

    content: str
    calls: tuple[ToolCall, ...] = ()
    malformed: tuple[MalformedCall, ...] = ()


def parse_tool_calls(text: str, tools: Collection[str]) -> ParsedOutput:
    """Split the output of a model into text and tool calls.

    A call is JSON with the "name" of a tool and its "arguments" (or "parameters"). It is recognized between
    ``<tool_call>`` tags; and without tags if the whole text is one call or a list of calls of the given tools.

    Args:
        text: The complete output.
        tools: Names of the tools that the model was given.
    """
    content, *blocks = text.split(OPEN)
    if blocks:
        return _parse_tagged(content, blocks)
    if not _may_be_bare(text):
        return ParsedOutput(text)
    try:
        found = json.loads(text.strip().removeprefix(BARE_PREFIX), strict=False)
    except json.JSONDecodeError:
        return ParsedOutput(text)
    items = found if isinstance(found, list) else [found]
    if items and all(isinstance(item, Mapping) and item.get("name") in tools for item in items):
        return ParsedOutput("", tuple(map(_parse_call, items)))
    return ParsedOutput(text)


def visible_text(text: str) -> str:
    """Return the part of an unfinished output that can be streamed: it cannot become part of a tool call."""
    if _may_be_bare(text):
        return ""
    content, tag, _ = text.partition(OPEN)
    if tag:
        return content
    partial_tag = next((length for length in range(len(OPEN) - 1, 0, -1) if text.endswith(OPEN[:length])), 0)
    return text[: len(text) - partial_tag]


def _may_be_bare(text: str) -> bool:
    """Return whether the text may be a tool call without tags."""
    return text.lstrip()[:1] in ("{", "[")


def _parse_tagged(content: str, blocks: list[str]) -> ParsedOutput:
    calls: list[ToolCall] = []
    malformed: list[MalformedCall] = []
    for block in blocks:
        body = block.partition(CLOSE)[0].strip()
        try:
            calls.append(_parse_call(json.loads(body, strict=False)))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            malformed.append(MalformedCall(body, repr(error), _new_id()))
    return ParsedOutput(content, tuple(calls), tuple(malformed))


def _parse_call(item: Mapping[str, Any]) -> ToolCall:
    arguments = item.get("arguments", item.get("parameters")) or {}
    if isinstance(arguments, str):
        arguments = json.loads(arguments, strict=False)
    name = item["name"]
    if not isinstance(name, str) or not name:
        raise ValueError(f"the name of the tool is {name!r}")
    return ToolCall(name, dict(arguments), _new_id())


def _new_id() -> str:
    return uuid4().hex[:9]
