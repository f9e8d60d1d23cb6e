"""Parse tool calls in a model's output, in the notation of any family of chat templates."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from antiphon.accel.text.tool_formats import (
    CHANNEL_MARKS,
    CLOSINGS,
    OPENING,
    OPENING_MARKS,
    CallSyntaxError,
    RawCall,
    raw_call,
    read_calls,
    read_json,
)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of a model.

    Attributes:
        name: Name of the tool.
        arguments: Arguments by name.
        id: New random id of nine letters or digits, the format of the strictest chat template.
    """

    name: str
    arguments: Mapping[str, Any]
    id: str


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """A tool call that cannot be parsed.

    Attributes:
        text: Text between the marks.
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
        content: The text, including tool calls that cannot be parsed.
        calls: The tool calls.
        malformed: Tool calls that cannot be parsed.
    """

    content: str
    calls: tuple[ToolCall, ...] = ()
    malformed: tuple[MalformedCall, ...] = ()

    def first_call_only(self) -> ParsedOutput:
        """Return the output with at most one call, for requests that do not allow parallel calls."""
        return replace(self, calls=self.calls[:1])


_KEYS = ("name", "function", "type", "id", "arguments", "parameters", "tool_name", "tool")
_BARE = re.compile(r'(?:```\w*\s*)?(?=(?:\[\s*)?\{\{?\s*")')
"""The beginning of JSON that may contain a tool call without marks, with a code fence before it."""

_BEGINNINGS = (
    *OPENING_MARKS,
    *CHANNEL_MARKS,
    *(
        f'{fence}{bracket}{{"{key}"'
        for fence in ("", "```json", "```", "```tool_call")
        for bracket in ("", "[", "{")
        for key in _KEYS
    ),
)
_CANDIDATE = re.compile(r"[<\[{`]")
_NAMED = re.compile(r'(?:```\w*\s*)?(?:\[\s*)?\{+\s*"name"\s*:\s*"([^"]*)"')
_OPENING_NEXT = re.compile(rf"\s*(?:{OPENING.pattern})")
_LISTED = re.compile(r"\s*\[\s*[\w.]*(?:\(|$)")
_SQUASHED = tuple("".join(beginning.split()) for beginning in _BEGINNINGS)
LOOKAHEAD = 160
"""Number of characters that decide whether a tool call begins."""


def parse_tool_calls(text: str, tools: Collection[str] | Mapping[str, Any]) -> ParsedOutput:
    """Split the output of a model into text and tool calls.

    Calls are recognized by their marks. JSON without marks is a call if it has the name of a given tool. A call that
    cannot be parsed remains in the text.

    Args:
        tools: Names of the available tools, or their schemas by name. Schemas determine the types
            of arguments.
    """
    content, place = "", 0
    calls: list[ToolCall] = []
    malformed: list[MalformedCall] = []
    if _LISTED.match(text) and (found := _python_calls(text, tools)):
        return ParsedOutput("", tuple(_typed_call(call, tools) for call in found))
    while place < len(text):
        marked, bare = OPENING.search(text, place), _BARE.search(text, place)
        if bare and (marked is None or bare.start() < marked.start()):
            found, end = _bare_calls(text, bare.end(), tools)
            content += _between(text[place : bare.start() if found else end], calls)
            calls += [_typed_call(call, tools) for call in found]
            closing = re.compile(r"\s*```").match(text, end) if found and bare[0] else None
            place = closing.end() if closing else end
            continue
        if marked is None:
            break
        content += _between(text[place : marked.start()], calls)
        try:
            found, place = read_calls(text, marked.start())
            if unknown := [call.name for call in found if not call.arguments and call.name not in tools]:
                raise CallSyntaxError(f"there is no tool {unknown[0]!r}, and no arguments are given")
            calls += [_typed_call(call, tools) for call in found]
        except (ValueError, RecursionError) as error:
            place = _end_of_block(text, marked.end())
            content += text[marked.start() : place]
            body = CLOSINGS.sub("", text[marked.end() : place]).strip()
            malformed.append(MalformedCall(body, repr(error), _new_id()))
    content += _between(text[place:], calls)
    return ParsedOutput(content if content.strip() or not calls else "", tuple(calls), tuple(malformed))


def visible_text(text: str, tools: Collection[str] = (), known: int = 0) -> str:
    """Return the part of an unfinished output that can be streamed, because it cannot become part of a tool call.

    Args:
        tools: Names of the available tools; empty if they are unknown.
        known: Length of the part that an earlier call returned; it is not examined again.
    """
    for candidate in _CANDIDATE.finditer(text, known):
        ahead = text[candidate.start() : candidate.start() + LOOKAHEAD]
        is_list = not text[: candidate.start()].strip() and _LISTED.match(ahead)
        if is_list or _may_begin_call(ahead, tools):
            text = text[: candidate.start()]
            break
    return text if text.strip() else ""


def _may_begin_call(text: str, tools: Collection[str]) -> bool:
    named = _NAMED.match(text)
    if named and tools and named[1] not in tools:
        return False
    squashed = "".join(text.split())
    return any(known.startswith(squashed) or squashed.startswith(known) for known in _SQUASHED)


def _bare_calls(text: str, start: int, tools: Collection[str]) -> tuple[list[RawCall], int]:
    """Return the calls of given tools in the JSON at ``start``, and the end of that JSON."""
    try:
        value, end = read_json(text, start)
    except (ValueError, RecursionError):
        return [], start + 1
    items = value if isinstance(value, list) else [value]
    try:
        calls = [raw_call(item) for item in items]
    except (ValueError, RecursionError):
        return [], end
    calls = [RawCall(_known_name(call.name, tools), call.arguments) for call in calls]
    return (calls, end) if all(call.name in tools for call in calls) else ([], end)


def _python_calls(text: str, tools: Collection[str]) -> list[RawCall]:
    """Return the calls if the whole text is a list of calls in Python's notation, else an empty list."""
    try:
        calls, end = read_calls(text, 0)
    except (ValueError, RecursionError):
        return []
    return calls if not text[end:].strip() and all(call.name in tools for call in calls) else []


def _between(text: str, calls: list[ToolCall]) -> str:
    """Return a text before or after calls; return an empty text if it is only white space after a call."""
    return text if text.strip() or not calls else ""


def _end_of_block(text: str, start: int) -> int:
    """Return the end of a malformed call: its closing mark's end, the next opening mark or the end of the text.

    Args:
        start: The position after the first opening mark; further opening marks may follow directly.
    """
    while following := _OPENING_NEXT.match(text, start):
        start = following.end()
    closing, opening = CLOSINGS.search(text, start), OPENING.search(text, start)
    ends = [found for found in (closing and closing.end(), opening and opening.start()) if found is not None]
    return min(ends, default=len(text))


def _known_name(name: str, tools: Collection[str]) -> str:
    short = name.removeprefix("functions.")
    return short if name not in tools and short in tools else name


def _typed_call(call: RawCall, tools: Collection[str] | Mapping[str, Any]) -> ToolCall:
    name = _known_name(call.name, tools)
    schema = tools.get(name) if isinstance(tools, Mapping) else None
    return ToolCall(name, typed_arguments(call.arguments, schema) if schema else call.arguments, _new_id())


def _new_id() -> str:
    return uuid4().hex[:9]


_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
MAX_DEPTH = 16
"""Maximum number of references and levels that are followed, because schemas may be recursive."""


def typed_arguments(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Convert arguments to the types of the schema: "5" becomes 5 if an integer is required.

    A value that cannot be converted is unchanged.
    """
    typed = _typed(dict(arguments), schema, schema, MAX_DEPTH)
    return typed if isinstance(typed, dict) else dict(arguments)


def _typed(value: Any, schema: Any, root: Mapping[str, Any], depth: int) -> Any:
    schema = _resolved(schema, root)
    if not isinstance(schema, Mapping) or depth <= 0:
        return value
    types = _types(schema, root, depth)
    if types and not any(_is(value, each) for each in types):
        value = _converted(value, types)
    for choice in _choices(schema):
        if any(_is(value, each) for each in _types(choice, root, depth)):
            value = _typed(value, choice, root, depth - 1)
    if isinstance(value, dict):
        named, others = schema.get("properties"), schema.get("additionalProperties")
        inner = named if isinstance(named, Mapping) else {}
        return {name: _typed(each, inner.get(name, others), root, depth - 1) for name, each in value.items()}
    if isinstance(value, list):
        return [_typed(each, schema.get("items"), root, depth - 1) for each in value]
    return value


def _resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    for _ in range(MAX_DEPTH):
        pointer = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(pointer, str) or not pointer.startswith("#"):
            return schema
        schema = root
        for name in filter(None, pointer[1:].split("/")):
            schema = schema.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(schema, Mapping) else None
    return None


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> list[str]:
    """Return the types that a schema allows, in the order of the schema; empty if it allows any type."""
    schema = _resolved(schema, root)
    if not isinstance(schema, Mapping) or depth <= 0:
        return []
    named = schema.get("type")
    found = [named] if isinstance(named, str) else [name for name in _items(named) if isinstance(name, str)]
    values = [*_items(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
    found += [] if found else [name for value in values for name in _PYTHON_TYPES if _is(value, name)]
    found += [name for choice in _choices(schema) for name in _types(choice, root, depth - 1)]
    return list(dict.fromkeys(name for name in found if name in _PYTHON_TYPES))


def _choices(schema: Mapping[str, Any]) -> list[Any]:
    """Return the schemas in a schema's ``anyOf``, ``oneOf`` and ``allOf``."""
    return [part for key in ("anyOf", "oneOf", "allOf") for part in _items(schema.get(key))]


def _items(value: Any) -> list[Any]:
    """Return the value if it is a list; otherwise (in a malformed schema) an empty list."""
    return list(value) if isinstance(value, list | tuple) else []


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return name in _PYTHON_TYPES and isinstance(value, _PYTHON_TYPES[name])


def _converted(value: Any, types: list[str]) -> Any:
    """Convert a value to an equivalent value of one of the types; return it unchanged if that is not possible."""
    read = _read(value) if isinstance(value, str) else value
    for name in types:
        if name in ("integer", "number") and isinstance(read, float) and read.is_integer():
            read = int(read)
        if _is(read, name):
            return read
    if "string" in types and not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return value


def _read(text: str) -> Any:
    """Parse a text as JSON, or as Python's True, False or None; return the text itself if neither is possible."""
    known = {"True": True, "False": False, "None": None, "true": True, "false": False}
    stripped = text.strip()
    if stripped in known:
        return known[stripped]
    try:
        return json.loads(stripped, strict=False)
    except (ValueError, RecursionError):
        return text
