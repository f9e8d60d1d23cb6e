"""Calls of tools that a model has to make: the schema that its answer follows, and who tells it. Knows no model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from antiphon.accel.decoding.grammar import JsonSchema
from antiphon.accel.text.messages import Message
from antiphon.accel.text.tool_calls import NONE, OPTIONAL, REQUIRED, Tool, choose_tools, supports_tools, tool_names

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class PreparedTools:
    """What a model is told of tools: the messages, those that its template writes, its first words, and a schema.

    ``names`` are those of all tools that it may call; ``schema`` is what its answer follows where it has to call one.
    ``choice`` tells a server the same, which writes the prompt itself.
    """

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    assistant_prefix: str = ""
    names: frozenset[str] = frozenset()
    schema: JsonSchema | None = None
    tool_choice: Any = None


def prepare_tools(
    tokenizer: PreTrainedTokenizerBase | None, messages: Sequence[Message], tools: Sequence[Tool], choice: Any = None
) -> PreparedTools:
    """The offer of tools with a choice among them; a model whose template writes none is told of them in a message.

    Raises:
        ValueError: the choice is no tool's name and nothing else that is known, or no template writes these tools and
            none of them has to be called.
    """
    wanted = choice["function"]["name"] if isinstance(choice, Mapping) else choice
    is_forced = bool(tools) and wanted not in OPTIONAL and wanted != NONE
    if tokenizer is None:
        heard = () if wanted == NONE else tools
        return PreparedTools(messages, heard, "", tool_names(heard), tool_choice=_chosen(wanted, heard) if is_forced else None)
    if is_forced and not supports_tools(tokenizer):
        chosen = [tool for tool in tools if wanted in (True, "any", "required", tool["function"]["name"])]
        if not chosen:
            raise ValueError(f"tool_choice is {wanted!r}, which is no tool's name; nor is it auto, none or any.")
        told = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in chosen)
        asked = f'Answer with a call of one of these tools, as JSON with its "name" and its "arguments":\n{told}'
        return PreparedTools(asking(messages, asked), (), "", tool_names(chosen), calls_schema(chosen, ""))
    heard, opening = choose_tools(tokenizer, tools, choice)
    if not is_forced:
        return PreparedTools(messages, heard, opening, tool_names(heard))
    opening = opening if "{" in opening else ""
    return PreparedTools(messages, heard, opening, tool_names(heard), calls_schema(heard, opening))


def _chosen(wanted: Any, tools: Sequence[Tool]) -> Any:
    """The choice in OpenAI's words: that some tool has to be called, or which."""
    if wanted in REQUIRED:
        return "required"
    if wanted not in tool_names(tools):
        raise ValueError(f"tool_choice is {wanted!r}, which is no tool's name; nor is it auto, none or any.")
    return {"type": "function", "function": {"name": wanted}}


def calls_schema(tools: Sequence[Tool], opening: str) -> JsonSchema:
    """The schema of a call of one of these tools, that goes on from how the answer was begun."""
    before, brace, after = opening.partition("{")
    key = "parameters" if '"parameters"' in after else "arguments"
    calls = [_call(tool["function"], place, key) for place, tool in enumerate(tools)]
    definitions = {name: each for call in calls for name, each in call.pop("$defs").items()}
    schema: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    begun = brace + after
    if before.endswith("["):
        schema, begun = {"type": "array", "items": schema, "minItems": 1, "maxItems": 1}, f"[{begun}"
    return JsonSchema({**schema, "$defs": definitions}, begun)


def asking(messages: Sequence[Message], text: str) -> list[Message]:
    """The messages, whose last turn of a user also asks for this; there is one in the end, whatever there was."""
    turns = [dict(message) for message in messages]
    if turns and turns[-1]["role"] == "user":
        turns[-1]["content"] = f"{turns[-1]['content']}\n\n{text}"
        return list(turns)
    return [*turns, {"role": "user", "content": text}]


def _call(function: Mapping[str, Any], place: int, key: str) -> dict[str, Any]:
    given = function.get("parameters") or {"type": "object", "properties": {}}
    arguments = _renamed(given, f"{place}.")
    definitions = {f"{place}.{name}": each for name, each in dict(arguments.pop("$defs", {})).items()}
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, key: arguments},
        "required": ["name", key],
        "$defs": definitions,
    }


def _renamed(schema: Any, prefix: str) -> Any:
    """The schema, whose definitions are looked for under other names: those of several tools stand side by side."""
    if isinstance(schema, list):
        return [_renamed(each, prefix) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    inner = {name: _renamed(each, prefix) for name, each in schema.items()}
    if isinstance(pointer := schema.get("$ref"), str):
        inner["$ref"] = pointer.replace("#/$defs/", f"#/$defs/{prefix}", 1)
    return inner
