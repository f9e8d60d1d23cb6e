"""The syntax of tool calls in the output of each family of chat templates."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

_DECODER = json.JSONDecoder(strict=False)
_NAME = r"[A-Za-z_][\w.:-]*"


class CallSyntaxError(ValueError):
    """A tool call has no name, or its arguments are not an object."""


class RawCall(NamedTuple):
    """A tool call as the model wrote it: name and arguments."""

    name: str
    arguments: dict[str, Any]


OPENING_MARKS = (
    "<tool_call>",  # Hermes, Qwen, SmolLM and GLM: JSON, XML or <arg_key>
    "<seed:tool_call>",
    "<function=",  # Qwen's XML
    "[TOOL_CALLS]",  # Mistral
    "<|python_tag|>",  # Llama
    "<|tool_call|>",  # Phi and Granite
    "<|tool_call_start|>",  # LFM
    *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),  # DeepSeek
    *("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),  # Kimi
)
"""Marks before tool calls. Templates without marks, such as Llama's, write the calls as JSON."""

CHANNEL_MARKS = ("<|channel|>commentary to=", "<|start|>assistant")
"""The beginning of tool calls of gpt-oss."""

_CLOSING_MARKS = (
    *("</tool_call>", "</seed:tool_call>", "<|eom_id|>", "<|/tool_call|>", "<|tool_call_end|>"),
    *("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<|tool_calls_section_end|>", "<|call|>", "<|end|>"),
)
"""Marks after tool calls. Models sometimes leave them out."""

_CHANNEL = r"(?:<\|start\|>)?(?:assistant)?(?:<\|channel\|>)?(?:commentary|analysis|final)?\s*to=functions\."
OPENING = re.compile("|".join([*map(re.escape, OPENING_MARKS), _CHANNEL]))
"""The beginning of a tool call."""

CLOSINGS = re.compile(rf"(?:\s*(?:{'|'.join(map(re.escape, _CLOSING_MARKS))}))+")
"""Marks after tool calls."""

_HEADERS = tuple(
    re.compile(pattern)
    for pattern in (
        rf"({_NAME})\s*\[CALL_ID\]\s*\w+\s*\[ARGS\]\s*(?=\{{)",  # Mistral since 2025
        rf"({_NAME})\s*\[ARGS\]\s*(?=\{{)",
        rf"(?:function)?\s*<｜tool▁sep｜>\s*({_NAME})\s*(?:```(?:json)?\s*)?(?=\{{)",  # DeepSeek V3 and R1
        rf"({_NAME})\s*<｜tool▁sep｜>\s*(?=\{{)",  # DeepSeek V3.1
        rf"({_NAME})\s*<\|tool_call_argument_begin\|>\s*(?=\{{)",  # Kimi
        r"to=functions\.([\w.-]+)[^{]{0,80}?(?=\{)",  # gpt-oss
        rf"({_NAME})\s*(?=\{{)",
    )
)
"""Matches headers: the name of a tool before the tool's arguments as JSON."""

_FENCE = re.compile(r"```(?:json|tool_call|python|xml)?\s*")
_FUNCTION = re.compile(r"<function=[\"']?([^>\"']+)[\"']?>\s*")
_PARAMETER = re.compile(r"<parameter=[\"']?([^>\"']+)[\"']?>")
_ARGUMENT = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
_SEPARATORS = re.compile(r"[\s,;]*")


def read_calls(text: str, start: int) -> tuple[list[RawCall], int]:
    """Read the tool call after an opening mark, and further calls that follow directly.

    Returns:
        The calls, and the position after the last call and its closing mark.

    Raises:
        ValueError: No call can be read.
    """
    place = _after_opening(text, start)
    calls, place = _read_some(text, place)
    while following := _read_another(text, place):
        calls += following[0]
        place = following[1]
    fence = re.compile(r"\s*```").match(text, place)
    closing = CLOSINGS.match(text, fence.end() if fence else place)
    return calls, closing.end() if closing else place


def read_json(text: str, start: int) -> tuple[Any, int]:
    """Read a JSON value; it may have doubled braces, as in the chat template of some Qwen2.5 files.

    Args:
        start: Position of the value, or of white space before it.

    Raises:
        ValueError: There is no complete value.
    """
    start = _after_space(text, start)
    try:
        return _DECODER.raw_decode(text, start)
    except json.JSONDecodeError:
        if not text.startswith("{{", start):
            raise
    value, end = _DECODER.raw_decode(text, start + 1)
    if text[end : end + 1] != "}":
        raise ValueError("the doubled braces are not closed")
    return value, end + 1


def _after_space(text: str, start: int) -> int:
    return start + len(text[start:]) - len(text[start:].lstrip())


def _after_opening(text: str, start: int) -> int:
    """Return the position after the opening marks. Marks that are part of a call are not skipped."""
    while (found := OPENING.match(text, start)) and not found[0].startswith("<function="):
        if found[0].endswith("to=functions."):
            return found.end() - len("to=functions.")
        start = _after_space(text, found.end())
    return start


def _read_another(text: str, place: int) -> tuple[list[RawCall], int] | None:
    """Read a further call without its own opening mark; return None if there is none."""
    at = _SEPARATORS.match(text, place)
    start = at.end() if at else place
    is_header = any(header.match(text, start) for header in _HEADERS[:-1])
    if not is_header and text[start : start + 1] not in ("{", "[") and not _FUNCTION.match(text, start):
        return None
    if OPENING.match(text, start) and not _FUNCTION.match(text, start):
        return None
    try:
        return _read_some(text, start)
    except ValueError:
        return None


def _read_some(text: str, start: int) -> tuple[list[RawCall], int]:
    """Read one call, or a list of calls, in any of the notations."""
    start = _after_space(text, start)
    if fence := _FENCE.match(text, start):
        start = fence.end()
    for reader in _READERS:
        if found := reader(text, start):
            return found
    raise ValueError("no tool call follows the mark")


def _read_listed(text: str, start: int) -> tuple[list[RawCall], int] | None:
    if text[start : start + 1] not in ("{", "["):
        return None
    try:
        value, end = read_json(text, start)
    except ValueError:
        if text.startswith("[", start):
            return None  # may be calls in Python's notation
        raise
    calls = [raw_call(item) for item in (value if isinstance(value, list) else [value])]
    if not calls:
        raise ValueError("the list of calls is empty")
    return calls, end


def _read_function(text: str, start: int) -> tuple[list[RawCall], int] | None:
    """Read ``<function=NAME>`` with parameters as XML (Qwen, Seed) or as JSON (Llama)."""
    opening = _FUNCTION.match(text, start)
    if opening is None:
        return None
    if text.startswith("{", opening.end()):
        arguments, end = read_json(text, opening.end())
    else:
        ends = (text.find(mark, opening.end()) for mark in ("</function>", "</tool_call>", "</seed:tool_call>"))
        end = min((each for each in ends if each >= 0), default=len(text))
        arguments = dict(_parameters(text[opening.end() : end]))
    closing = re.compile(r"\s*</function>").match(text, end)
    return [RawCall(opening[1].strip(), arguments)], closing.end() if closing else end


def _parameters(body: str) -> Iterator[tuple[str, str]]:
    for part in _PARAMETER.finditer(body):
        value, closing, _ = body[part.end() :].partition("</parameter>")
        if not closing:
            raise ValueError(f"the parameter {part[1]!r} is not closed")
        yield part[1].strip(), value.removeprefix("\n").removesuffix("\n")


def _read_pairs(text: str, start: int) -> tuple[list[RawCall], int] | None:
    """Read a name with ``<arg_key>`` and ``<arg_value>`` pairs (GLM)."""
    name = re.compile(rf"({_NAME})\s*(?=<arg_key>|</tool_call>)").match(text, start)
    if name is None:
        return None
    arguments, end = {}, name.end()
    while pair := _ARGUMENT.match(text, end):
        arguments[pair[1].strip()] = pair[2]
        end = pair.end()
    if text[end:].lstrip().startswith("<arg_key>"):
        raise ValueError("an argument has no value")
    return [RawCall(name[1], arguments)], end


def _read_header(text: str, start: int) -> tuple[list[RawCall], int] | None:
    for header in _HEADERS:
        if found := header.match(text, start):
            arguments, end = read_json(text, found.end())
            if not isinstance(arguments, dict):
                raise ValueError("the arguments are no object")
            return [RawCall(re.sub(r"^functions\.|:\d+$", "", found[1]), arguments)], end
    return None


def _read_python(text: str, start: int) -> tuple[list[RawCall], int] | None:
    """Read calls in Python's notation up to a closing mark or the end (Llama, LFM)."""
    closing = CLOSINGS.search(text, start)
    end = closing.start() if closing else len(text)
    source = text[start:end].strip()
    if not re.match(rf"\[?\s*{_NAME}\(", source):
        return None
    try:
        tree = ast.parse(source, mode="eval").body
        calls = [_python_call(node) for node in (tree.elts if isinstance(tree, ast.List) else [tree])]
    except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(f"these are no calls in Python's notation: {error}") from error
    return calls, end


def _python_call(node: ast.expr) -> RawCall:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("a call in Python's notation needs named arguments")
    if any(each.arg is None for each in node.keywords):
        raise ValueError("a call in Python's notation needs the names of its arguments")
    arguments = {str(each.arg): ast.literal_eval(each.value) for each in node.keywords}
    json.dumps(arguments)  # raises TypeError for sets, bytes and other values that JSON does not have
    return RawCall(ast.unparse(node.func).removesuffix(".call"), arguments)


_READERS: tuple[Callable[[str, int], tuple[list[RawCall], int] | None], ...] = (
    _read_listed,
    _read_function,
    _read_pairs,
    _read_python,
    _read_header,
)


def raw_call(item: Any) -> RawCall:
    """Convert a JSON object in any of the usual forms to a call.

    Raises:
        CallSyntaxError: The call has no name, or its arguments are not an object.
    """
    if not isinstance(item, Mapping):
        raise CallSyntaxError(f"a tool call is {item!r}, which is no object")
    function = item.get("function")
    inner = function if isinstance(function, Mapping) else item
    names = (inner.get("name"), inner.get("tool_name"), function, inner.get("tool"))
    name = next((each for each in names if each is not None and not isinstance(each, Mapping)), None)
    given = next((inner[key] for key in ("arguments", "parameters", "args", "input") if key in inner), None)
    arguments = json.loads(given, strict=False) if isinstance(given, str) and given.strip() else given or {}
    if not isinstance(name, str) or not name:
        raise CallSyntaxError(f"the name of the tool is {name!r}")
    if not isinstance(arguments, Mapping):
        raise CallSyntaxError(f"the arguments are {arguments!r}, which is no object")
    return RawCall(name, dict(arguments))
