"""Tools of a request: the tools that a model may or must call, and the schema and prefix that force a call."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from antiphon.accel.constraints.json_schema import JsonSchema
from antiphon.accel.text.chat_template import apply_chat_template, tool_call_prefix
from antiphon.accel.text.messages import Conversation, Message
from antiphon.accel.text.thinking import thinking_format

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

OPTIONAL, NONE, REQUIRED = (None, "auto", False), "none", ("any", "required", True)
"""Values of ``tool_choice`` besides the name of a tool: the model may call a tool, is given no tools, or must call one.

LangChain, LlamaIndex and OpenAI's API use different values for the same choice.
"""

Tool = Mapping[str, Any]
"""A tool as JSON: its "function" with "name", "description" and "parameters", as chat templates expect it."""


PreparedTools = tuple[Conversation, Mapping[str, Mapping[str, Any]], JsonSchema | None]
"""A request with tools: the conversation, the schemas of the arguments of all tools that the model may call, by name,
and the schema of the answer. If the model must call a tool, that is the schema of a call; None: not restricted."""


def prepare_tools(
    tokenizer: PreTrainedTokenizerBase | None,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    choice: Any = None,
    schema: Mapping[str, Any] | JsonSchema | None = None,
) -> PreparedTools:
    """Apply a tool choice and the schema of the answer to a request.

    If a call is required and the chat template does not support tools, the last message describes the
    tools. If it supports them, the answer begins with the call.

    Args:
        tokenizer: Tokenizer of a local model; None for a model on a server.
        choice: The name of a tool, one of `OPTIONAL`, `NONE` and `REQUIRED`, or OpenAI's mapping with a name.
        schema: JSON schema of an answer that calls no tool.

    Raises:
        ValueError: ``choice`` is neither a tool's name nor a known value; ``choice`` requires a call and there is a
            schema; or the chat template rejects the tools.
    """
    answer = JsonSchema(schema) if isinstance(schema, Mapping) else schema
    choice = choice["function"]["name"] if isinstance(choice, Mapping) else choice
    if choice == NONE or not tools:
        return Conversation(messages), {}, answer
    if choice in OPTIONAL:
        answer = answer and _answer_or_call(tokenizer, tools, answer)
        return Conversation(messages, tools), argument_schemas(tools), answer
    if answer is not None:
        raise ValueError("A tool must be called, so the answer cannot have another format; leave out one of the two.")
    chosen = [tool for tool in tools if choice in REQUIRED or _name(tool) == choice]
    if not chosen:
        raise ValueError(f"tool_choice is {choice!r}, which is no tool's name; nor is it auto, none or any.")
    if tokenizer is None:
        required = "required" if choice in REQUIRED else {"type": "function", "function": {"name": choice}}
        return Conversation(messages, tools, tool_choice=required), argument_schemas(tools), None
    if not supports_tools(tokenizer):
        described = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in chosen)
        text = f'Answer with a call of one of these tools, as JSON with its "name" and its "arguments":\n{described}'
        described_to = Conversation(with_instruction(messages, text))
        return described_to, argument_schemas(chosen), tool_call_schema(chosen, "")
    prefix = tool_call_prefix(
        tokenizer, chosen, _name(chosen[0]) if choice not in REQUIRED or len(chosen) == 1 else None
    )
    prefix = prefix if "{" in prefix else ""  # calls in another syntax than JSON are not forced by a prefix
    schema = tool_call_schema(chosen, prefix, _arguments_key(tokenizer, chosen))
    return Conversation(messages, chosen, prefix), argument_schemas(chosen), schema


def supports_tools(tokenizer: PreTrainedTokenizerBase | None) -> bool:
    """Return whether the chat template supports tools; always True without a tokenizer, because a server decides."""
    if tokenizer is None:
        return True
    if tokenizer.chat_template is None:
        return False
    tool = {"type": "function", "function": {"name": "any", "description": "", "parameters": {}}}
    try:
        apply_chat_template([{"role": "user", "content": "?"}], [tool], tokenizer)
    except ValueError:
        return False
    return True


def argument_schemas(tools: Sequence[Tool]) -> dict[str, Mapping[str, Any]]:
    """Return, for each tool's name, the schema of its arguments."""
    return {_name(tool): tool["function"].get("parameters") or {} for tool in tools}


def tool_call_schema(tools: Sequence[Tool], prefix: str, key: str = "arguments") -> JsonSchema:
    """Return the JSON schema of a call of one of the tools.

    Args:
        prefix: Beginning of the answer. It may contain the beginning of the JSON.
        key: Name of the property that holds the arguments.
    """
    before, brace, after = prefix.partition("{")
    calls = [_call_schema(tool["function"], key) for tool in tools]
    schema: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    written = brace + after
    if before.endswith("["):  # Mistral's list of calls
        schema, written = {"type": "array", "items": schema, "minItems": 1, "maxItems": 1}, f"[{written}"
    return JsonSchema(schema, written)


def with_instruction(messages: Sequence[Message], text: str) -> list[Message]:
    """Append an instruction to the last user message; after an assistant turn, add the instruction as a new message."""
    turns = [dict(message) for message in messages]
    asked = max((place for place, turn in enumerate(turns) if turn["role"] == "user"), default=-1)
    if turns and turns[-1]["role"] in ("user", "tool") and asked >= 0:
        turns[asked]["content"] = f"{turns[asked]['content']}\n\n{text}"
        return list(turns)
    return [*turns, {"role": "user", "content": text}]


def _answer_or_call(tokenizer: PreTrainedTokenizerBase | None, tools: Sequence[Tool], answer: JsonSchema) -> JsonSchema:
    """Return the schema of a response that is an answer or a call. Calls that begin with a mark are not restricted."""
    if tokenizer is None:
        return answer
    mark = tool_call_prefix(tokenizer, tools).partition("{")[0]
    if thinking := thinking_format(tokenizer):
        mark = mark.rpartition(thinking.end)[2]
    if mark := mark.strip():
        return replace(answer, unless=mark)
    call = tool_call_schema(tools, "", _arguments_key(tokenizer, tools))
    return JsonSchema({"anyOf": [call.schema, {"$defs": {}, **answer.schema}]})


def _arguments_key(tokenizer: PreTrainedTokenizerBase, tools: Sequence[Tool]) -> str:
    """Return the name of the property that holds the arguments of a call in JSON, as the chat template writes it."""
    return "parameters" if '"parameters"' in tool_call_prefix(tokenizer, tools, _name(tools[0])) else "arguments"


def _call_schema(function: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the schema of a call of one tool.

    The definitions (``$defs``) for the arguments stay inside the schema of the arguments.
    """
    arguments = {"$defs": {}, **(function.get("parameters") or {"type": "object", "properties": {}})}
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, key: arguments},
        "required": ["name", key],
    }


def _name(tool: Tool) -> str:
    return str(tool["function"]["name"])
