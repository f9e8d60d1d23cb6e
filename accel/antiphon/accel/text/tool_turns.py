"""Adapt tool calls and results to the chat template. Rendered probes show the template's traits."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal

from antiphon.accel.text.template_traits import RenderedTemplate, adapt_messages, template_traits

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


IdFormat = Literal["any", "nine", "name"]
"""Ids that a template accepts: any text; nine letters and digits (Mistral); or ``functions.NAME:N`` (Kimi)."""

_NAME, _VALUE, _RESULT = "probe_tool", "PROBE-VALUE", "PROBE-RESULT"
_IDS: tuple[tuple[IdFormat, str], ...] = (("any", "call_probe_of_an_id"), ("nine", "probeid01"))
_OFFERED = {
    "type": "function",
    "function": {"name": "other_tool", "description": "", "parameters": {"type": "object", "properties": {}}},
}
_NINE = re.compile(r"[a-zA-Z0-9]{9}")


@dataclass(frozen=True, slots=True)
class ToolTraits:
    """The traits of a chat template for tool calls.

    Attributes:
        writes_calls: Whether the template renders the calls of earlier messages.
        rejects_calls: Whether the template raises an error for calls. If it neither renders nor
            rejects calls, it drops them.
        takes_text_arguments: Whether arguments must be JSON text; if not, they are an object.
        takes_several: Whether a message may have several calls.
        writes_results: Whether the template renders or rejects tool results; if not, it drops them.
        ids: The format of ids that the template accepts.
    """

    writes_calls: bool = True
    rejects_calls: bool = False
    takes_text_arguments: bool = False
    takes_several: bool = True
    writes_results: bool = True
    ids: IdFormat = "any"


def tool_traits(tokenizer: PreTrainedTokenizerBase) -> ToolTraits:
    """Return the tool traits of a tokenizer's chat template, found once per template, by rendering probes."""
    return _probe(RenderedTemplate(str(tokenizer.chat_template), tokenizer))


@lru_cache(maxsize=64)
def _probe(template: RenderedTemplate) -> ToolTraits:
    traits = template_traits(template.tokenizer)

    def render(count: int, number: str, *, is_text: bool) -> str:
        """Render a conversation with one or two calls and results; return an empty text if the template rejects it."""
        calls, results = [], []
        for index in range(1, count + 1):
            call_id, arguments = f"{number[:-1]}{index}", {f"{_VALUE}{index}": f"{_VALUE}{index}"}
            function = {"name": _NAME, "arguments": json.dumps(arguments) if is_text else arguments}
            calls.append({"type": "function", "id": call_id, "function": function})
            results.append({"role": "tool", "content": _RESULT, "tool_call_id": call_id})
        question = {"role": "user", "content": "?"}
        answer = {"role": "assistant", "content": "", "tool_calls": calls}
        return template.render(adapt_messages([question, answer, *results], traits), [_OFFERED])

    rendered = []
    for ids, number in _IDS:
        for is_text in (False, True):
            text = render(1, number, is_text=is_text)
            rendered.append(text)
            if f"{_VALUE}1" not in text or not (_NAME in text or number[:-1] in text):
                continue
            both = render(2, number, is_text=is_text)
            return ToolTraits(
                takes_text_arguments=is_text,
                takes_several=f"{_VALUE}1" in both and f"{_VALUE}2" in both,
                writes_results=_RESULT in text,
                ids=ids if _NAME in text else "name",
            )
    return ToolTraits(
        writes_calls=False, rejects_calls=not any(rendered), writes_results=not any(rendered) or _RESULT in rendered[0]
    )


def adapt_tool_turns(messages: Sequence[Mapping[str, Any]], tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    """Adapt messages so that the chat template renders their tool calls and results completely.

    1. An empty list of tool calls is removed, and content that is None becomes an empty text.
    2. Ids are converted to the format that the template accepts; a call and its result keep equal ids.
    3. Arguments become an object or JSON text.
    4. If the template accepts only one call per message, each call becomes a separate message,
       followed by the call's result.
    5. Calls and results that the template would drop become text.
    """
    turns = [_without_empty_calls(message) for message in messages]
    if not any(turn.get("tool_calls") or turn["role"] == "tool" for turn in turns):
        return turns
    traits = tool_traits(tokenizer)
    if not traits.writes_calls:
        return turns if traits.rejects_calls else [_as_text(turn, traits) for turn in turns]
    turns = _with_ids(turns, traits.ids)
    if not traits.takes_several:
        turns = list(_one_call_each(turns))
    return [_with_arguments(turn, traits) for turn in turns]


def _without_empty_calls(message: Mapping[str, Any]) -> dict[str, Any]:
    turn = dict(message)
    if not turn.get("tool_calls"):
        turn.pop("tool_calls", None)
        if turn.get("content") is None:
            turn["content"] = ""
    return turn


def _with_ids(turns: Sequence[dict[str, Any]], ids: IdFormat) -> list[dict[str, Any]]:
    """Give the turns ids that the template accepts. A result without an id gets the id of the next open call."""
    renamed: dict[str, str] = {}
    open_calls: list[str] = []
    number, found = 0, list[dict[str, Any]]()
    for turn in turns:
        turn = {**turn}
        if ids == "name":
            turn.pop("name", None)  # Kimi's template writes it in place of the role
        if calls := turn.get("tool_calls"):
            turn["tool_calls"] = []
            for call in calls:
                given = str(call.get("id") or "")
                new = _new_id(given, call, number, ids)
                renamed[given], number = new, number + 1
                open_calls.append(new)
                turn["tool_calls"].append({"type": "function", **call, "id": new})
        elif turn["role"] == "tool":
            given = str(turn.get("tool_call_id") or "")
            known = renamed.get(given) if given else next(iter(open_calls), None)
            turn["tool_call_id"] = known or _new_id(given, {}, number, ids)
            if known in open_calls:
                open_calls.remove(known)
        found.append(turn)
    return found


def _new_id(given: str, call: Mapping[str, Any], number: int, ids: IdFormat) -> str:
    if ids == "name":
        name = str(call.get("function", {}).get("name", "unknown")).removeprefix("functions.")
        return f"functions.{name}:{number}"
    if (ids == "any" and given) or _NINE.fullmatch(given):
        return given
    return sha256((given or f"call {number}").encode()).hexdigest()[:9]


def _one_call_each(turns: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the turns, with one message for each tool call, followed by the call's result."""
    place = 0
    while place < len(turns):
        turn, place = turns[place], place + 1
        calls = turn.get("tool_calls") or []
        if len(calls) < 2:
            yield turn
            continue
        results: list[dict[str, Any]] = []
        while place < len(turns) and turns[place]["role"] == "tool":
            results.append(turns[place])
            place += 1
        for index, call in enumerate(calls):
            yield {**turn, "tool_calls": [call], "content": "" if index else turn.get("content")}
            yield from (each for each in results if each["tool_call_id"] == call["id"])
        yield from (each for each in results if each["tool_call_id"] not in {call["id"] for call in calls})


def _with_arguments(turn: dict[str, Any], traits: ToolTraits) -> dict[str, Any]:
    """Convert the arguments of a turn's calls to the accepted type."""
    if not turn.get("tool_calls"):
        return turn
    calls = [{**call, "function": _typed(call["function"], traits)} for call in turn["tool_calls"]]
    return {**turn, "content": turn.get("content") or "", "tool_calls": calls}


def _typed(function: Mapping[str, Any], traits: ToolTraits) -> dict[str, Any]:
    given = function.get("arguments")
    if isinstance(given, str):
        try:
            given = json.loads(given or "{}")
        except (ValueError, RecursionError):
            given = {"arguments": given}
    if traits.takes_text_arguments:
        given = json.dumps(given or {}, ensure_ascii=False)
    return {**function, "arguments": given or {}}


def _as_text(turn: dict[str, Any], traits: ToolTraits) -> dict[str, Any]:
    """Convert calls or a tool result to text, for a template that would drop them."""
    if calls := turn.get("tool_calls"):
        functions = [_typed(call["function"], ToolTraits()) for call in calls]
        written = [
            json.dumps({key: each[key] for key in ("name", "arguments")}, ensure_ascii=False) for each in functions
        ]
        content = "\n".join(filter(None, [str(turn.get("content") or ""), *written]))
        return {**{name: value for name, value in turn.items() if name != "tool_calls"}, "content": content}
    if turn["role"] == "tool" and not traits.writes_results:
        return {"role": "user", "content": turn["content"]}
    return turn
