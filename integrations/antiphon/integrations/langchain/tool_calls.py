"""What a model writes when it calls a tool, read and told from what it says. Knows no messages."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from langchain_core.messages import InvalidToolCall, ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
"""Around a call, as most chat templates have it (Hermes, Qwen, SmolLM)."""

BARE = "[TOOL_CALLS]"
"""Before calls in Mistral's templates, where it is shown at all; Llama's have nothing there."""


@dataclass(frozen=True, slots=True)
class Said:
    """A text of a model, told apart: what it says, the tools that it calls, and calls that cannot be read."""

    content: str
    calls: tuple[ToolCall, ...] = ()
    broken: tuple[InvalidToolCall, ...] = ()


def read(text: str, tools: Collection[str]) -> Said:
    """What a model to which these tools were offered said.

    A call is JSON with the "name" of a tool and its "arguments" (or "parameters"): each one between ``<tool_call>``
    tags, or one or a list of them as the whole text, where it names a tool that was offered.
    """
    content, *blocks = text.split(OPEN)
    if blocks:
        return _tagged(content, blocks)
    if not _may_be_bare(text):
        return Said(text)
    try:
        found = json.loads(text.strip().removeprefix(BARE), strict=False)
    except json.JSONDecodeError:
        return Said(text)
    items = found if isinstance(found, list) else [found]
    if items and all(isinstance(item, Mapping) and item.get("name") in tools for item in items):
        return Said("", tuple(map(_call, items)))
    return Said(text)


def shown(text: str) -> str:
    """As much of a text that is still growing as can no longer become part of a call."""
    if _may_be_bare(text):
        return ""
    said, tag, _ = text.partition(OPEN)
    if tag:
        return said
    begun = next((length for length in range(len(OPEN) - 1, 0, -1) if text.endswith(OPEN[:length])), 0)
    return text[: len(text) - begun]


def _may_be_bare(text: str) -> bool:
    return text.lstrip()[:1] in ("{", "[")


def _tagged(content: str, blocks: list[str]) -> Said:
    calls: list[ToolCall] = []
    broken: list[InvalidToolCall] = []
    for block in blocks:
        body = block.partition(CLOSE)[0].strip()
        try:
            calls.append(_call(json.loads(body, strict=False)))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            broken.append(InvalidToolCall(name=None, args=body, id=_id(), error=f"{error!r}", type="invalid_tool_call"))
    return Said(content, tuple(calls), tuple(broken))


def _call(item: Mapping[str, Any]) -> ToolCall:
    arguments = item.get("arguments", item.get("parameters")) or {}
    if isinstance(arguments, str):
        arguments = json.loads(arguments, strict=False)
    return ToolCall(name=str(item["name"]), args=dict(arguments), id=_id(), type="tool_call")


def _id() -> str:
    """Nine letters or digits: what the strictest template wants."""
    return uuid4().hex[:9]
