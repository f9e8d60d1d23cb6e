"""Tools: which a model hears of, and what it writes when it calls one, told from what it says. Knows no model."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from antiphon.accel.text.messages import Conversation, encode_prompt, tool_call_prefix

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

OPEN, CLOSE = "<tool_call>", "</tool_call>"
"""Around a call, as most chat templates have it (Hermes, Qwen, SmolLM)."""

BARE = "[TOOL_CALLS]"
"""Before calls in Mistral's templates, where it is shown at all; Llama's have nothing there."""

OPTIONAL, NONE, REQUIRED = (None, "auto", False), "none", ("any", "required", True)
"""What a choice of tools may be besides a tool's name: the model may call one, hears of none, or has to call one."""

Tool = Mapping[str, Any]
"""A tool as JSON: its "function" with "name", "description" and "parameters", as chat templates take it."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that a model calls; ``id`` is new, nine letters or digits: what the strictest template wants."""

    name: str
    arguments: Mapping[str, Any]
    id: str


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """The text of a call that cannot be read, and why."""

    text: str
    error: str
    id: str


@dataclass(frozen=True, slots=True)
class ParsedOutput:
    """A text of a model, told apart: what it says, the tools that it calls, and calls that cannot be read."""

    content: str
    calls: tuple[ToolCall, ...] = ()
    malformed: tuple[MalformedCall, ...] = ()


def choose_tools(tokenizer: PreTrainedTokenizerBase, tools: Sequence[Tool], choice: Any = None) -> tuple[Sequence[Tool], str]:
    """The tools that the model hears of, and how its answer begins where it has to call one.

    Raises:
        ValueError: the choice is no tool's name and nothing else that is known, or no template writes these tools.
    """
    choice = choice["function"]["name"] if isinstance(choice, Mapping) else choice
    if choice in OPTIONAL or choice == NONE or not tools:
        return () if choice == NONE else tools, ""
    if choice in REQUIRED:
        return tools, tool_call_prefix(tokenizer, tools, _name(tools[0]) if len(tools) == 1 else None)
    chosen = [tool for tool in tools if _name(tool) == choice]
    if not chosen:
        raise ValueError(f"tool_choice is {choice!r}, which is no tool's name; nor is it auto, none or any.")
    return chosen, tool_call_prefix(tokenizer, chosen, choice)


def supports_tools(tokenizer: PreTrainedTokenizerBase | None) -> bool:
    """Whether the model is told of tools: by its chat template, or by the server that it runs on."""
    if tokenizer is None:
        return True
    if tokenizer.chat_template is None:
        return False
    tool = {"type": "function", "function": {"name": "any", "description": "", "parameters": {}}}
    try:
        encode_prompt(Conversation([{"role": "user", "content": "?"}], [tool]), tokenizer)
    except ValueError:
        return False
    return True


def tool_names(tools: Sequence[Tool]) -> frozenset[str]:
    """What the tools are called."""
    return frozenset(map(_name, tools))


def parse_tool_calls(text: str, tools: Collection[str]) -> ParsedOutput:
    """What a model to which these tools were offered said.

    A call is JSON with the "name" of a tool and its "arguments" (or "parameters"): each one between ``<tool_call>``
    tags, or one or a list of them as the whole text, where it names a tool that was offered.
    """
    content, *blocks = text.split(OPEN)
    if blocks:
        return _tagged(content, blocks)
    if not _may_be_bare(text):
        return ParsedOutput(text)
    try:
        found = json.loads(text.strip().removeprefix(BARE), strict=False)
    except json.JSONDecodeError:
        return ParsedOutput(text)
    items = found if isinstance(found, list) else [found]
    if items and all(isinstance(item, Mapping) and item.get("name") in tools for item in items):
        return ParsedOutput("", tuple(map(_call, items)))
    return ParsedOutput(text)


def visible_text(text: str) -> str:
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


def _tagged(content: str, blocks: list[str]) -> ParsedOutput:
    calls: list[ToolCall] = []
    broken: list[MalformedCall] = []
    for block in blocks:
        body = block.partition(CLOSE)[0].strip()
        try:
            calls.append(_call(json.loads(body, strict=False)))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            broken.append(MalformedCall(body, repr(error), _id()))
    return ParsedOutput(content, tuple(calls), tuple(broken))


def _call(item: Mapping[str, Any]) -> ToolCall:
    arguments = item.get("arguments", item.get("parameters")) or {}
    if isinstance(arguments, str):
        arguments = json.loads(arguments, strict=False)
    name = item["name"]
    if not isinstance(name, str) or not name:
        raise ValueError(f"the name of the tool is {name!r}")
    return ToolCall(name, dict(arguments), _id())


def _name(tool: Tool) -> str:
    return str(tool["function"]["name"])


def _id() -> str:
    return uuid4().hex[:9]
