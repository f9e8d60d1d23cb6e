"""Check which kinds of conversations a model's chat template supports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from antiphon.accel.text.chat_template import apply_chat_template
from antiphon.accel.text.template_traits import template_traits
from antiphon.accel.text.thinking_switch import template_variables, thinking_traits

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def _turns(*turns: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in turns]


TOOL = {
    "type": "function",
    "function": {
        "name": "count",
        "description": "Count the bees of a hive.",
        "parameters": {"type": "object", "properties": {"hive": {"type": "string"}}, "required": ["hive"]},
    },
}
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}

_SYSTEM, _USER, _NEXT = ("system", "You keep bees."), ("user", "How do bees live?"), ("user", "And why?")
_CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"type": "function", "id": "call_bees_1", "function": {"name": "count", "arguments": {"hive": "oak hive"}}}
    ],
}
_RESULT = {"role": "tool", "tool_call_id": "call_bees_1", "content": "sixty thousand"}


@dataclass(frozen=True, slots=True)
class TemplateCase:
    """A kind of conversation that a model should support.

    Attributes:
        tools: Tools that the model may call.
        schema: Schema of the answer; None for any answer.
        thinking: True: thinking is turned on; False: turned off; None: left at the template's
            default.
    """

    name: str
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    schema: Mapping[str, Any] | None = None
    thinking: bool | None = None


CASES = (
    TemplateCase("question", _turns(_SYSTEM, _USER)),
    TemplateCase("two turns", _turns(_SYSTEM, _USER, ("assistant", "In colonies."), _NEXT)),
    TemplateCase("tools", [*_turns(_USER), _CALL, _RESULT], tools=[TOOL]),
    TemplateCase("schema", _turns(_USER), schema=SCHEMA),
    TemplateCase("thinking on", _turns(_USER), thinking=True),
    TemplateCase("thinking off", _turns(_USER), thinking=False),
    TemplateCase("system only", _turns(_SYSTEM)),
    TemplateCase("two users", _turns(_USER, _NEXT)),
)
"""The kinds of conversations to check."""


def check_template(tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """Return, for each of `CASES`, why the chat template does not render the case completely; empty if it does."""
    return {case.name: _refusal(case, tokenizer) for case in CASES}


def _refusal(case: TemplateCase, tokenizer: PreTrainedTokenizerBase) -> str:
    if case.thinking is not None and (message := missing_switch(tokenizer)):
        return message
    variables = template_variables(tokenizer, {}, case.thinking)
    try:
        text = apply_chat_template(case.messages, case.tools, tokenizer, variables=variables)
    except ValueError as error:
        return str(error)
    place = 0
    for part in (message["content"] or "oak hive" for message in case.messages):
        if part not in text:
            return f"The chat template drops {part!r}."
        if (place := text.find(part, place)) < 0:
            return "The chat template changes the order."
    return ""


def missing_switch(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return why this template cannot turn thinking on and off; empty if it can."""
    traits = thinking_traits(tokenizer)
    if traits.switch:
        return ""
    return "The model does not think." if traits.format is None else "The chat template has no switch for thinking."


def describe_traits(tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """Return the traits of a chat template as text, by name."""
    if tokenizer.chat_template is None:
        return {"template": "none: prompts are plain text"}
    traits = template_traits(tokenizer)
    results = check_template(tokenizer)
    refused = [f"{name}: {message}" for name, message in results.items() if message]
    return {
        "system role": "yes" if traits.has_system_role else "no: instructions are put before the next question",
        "turns": "have to alternate: others are merged" if traits.alternates else "in any order",
        "thinking": str(thinking_traits(tokenizer)),
        "template takes": ", ".join(name for name, message in results.items() if not message),
        **({"template refuses": "\n".join(refused)} if refused else {}),
    }
