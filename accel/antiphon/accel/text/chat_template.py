"""Apply a tokenizer's chat template: convert messages and tools to the text of a prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from antiphon.accel.text.template_traits import adapt_messages, render, template_traits
from antiphon.accel.text.tool_turns import adapt_tool_turns, tool_traits

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_NAME, _ARGUMENT = "TOOL-NAME", "ARGUMENT-NAME"


def apply_chat_template(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    add_generation_prompt: bool = True,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """Render messages and tools with the chat template; return the text of the prompt.

    Args:
        tools: Tools that the model may call, as JSON schemas; the template must support them.
        add_generation_prompt: Whether the text ends with the beginning of the assistant's turn.

    Raises:
        ValueError: A message is malformed, or the template is missing, rejects the messages or does not support
            tools.
    """
    options = {"add_generation_prompt": add_generation_prompt, **(variables or {})}
    text = _apply(messages, tools, tokenizer, **options)
    if tools and text == _apply(messages, (), tokenizer, **options):
        raise ValueError(
            f"The chat template of {tokenizer.name_or_path or 'this model'!r} does not write tools, so the model would "
            "not know them; use a model that was trained to call tools, or give none."
        )
    return text


def tool_call_prefix(
    tokenizer: PreTrainedTokenizerBase, tools: Sequence[Mapping[str, Any]], name: str | None = None
) -> str:
    """Return the beginning of a tool call in the syntax of the chat template.

    The syntax is found by rendering an example of a call.

    Args:
        name: Tool to call; the returned text ends before its arguments. None: any tool; the text ends before the
            tool's name.

    Returns:
        The beginning of the assistant's turn; empty if it cannot be found by rendering.

    Raises:
        ValueError: See `apply_chat_template`.
    """
    if not tool_traits(tokenizer).writes_calls:
        return ""
    question = {"role": "user", "content": "?"}
    function = {"name": _NAME, "arguments": {_ARGUMENT: 1}}
    call = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "id": "0" * 9, "function": function}],
    }
    before = _apply([question], tools, tokenizer)
    whole = _apply([question, call], tools, tokenizer, add_generation_prompt=False)
    prefix, _, rest = whole.removeprefix(before).partition(_NAME)
    if not rest or not whole.startswith(before):
        return ""
    separator, _, has_json_arguments = rest.partition(f'{{"{_ARGUMENT}"')
    return prefix if name is None else prefix + name + (separator if has_json_arguments else "")


def _apply(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    **variables: Any,
) -> str:
    turns = [_with_text(index, message) for index, message in enumerate(_check(messages))]
    if tokenizer.chat_template is None:
        raise ValueError(
            f"The tokenizer of {tokenizer.name_or_path or 'this model'!r} has no chat template and so cannot write "
            "messages; pass the prompt as one text (str), or set tokenizer.chat_template."
        )
    traits = template_traits(tokenizer)
    adapted = adapt_messages(adapt_tool_turns(turns, tokenizer), traits)
    schemas: Any = [dict(tool) for tool in tools] or (None if traits.takes_no_tools else [])
    try:
        return render(tokenizer, adapted, tools=schemas, **variables)
    except _REJECTIONS as error:
        place = _first_rejected(adapted, partial(render, tokenizer, tools=schemas, **variables))
        name = "" if place is None else f" at message {place} ({adapted[place]['role']})"
        raise ValueError(
            f"The chat template rejects this conversation{name}: {error}. Change the role, order or content of its "
            "messages, or use a model whose template supports them."
        ) from error


_REJECTIONS = (
    TemplateError,
    TypeError,
    LookupError,
    AttributeError,
    ValueError,
    ArithmeticError,
    RecursionError,
)
"""Errors with which a template rejects messages: its own, or from filters and missing fields."""


def _first_rejected(
    messages: Sequence[Mapping[str, Any]], render: Callable[[Sequence[Mapping[str, Any]]], str]
) -> int | None:
    """Return the index of the first message at which the template rejects the conversation."""
    for end in range(1, len(messages) + 1):
        try:
            render(messages[:end])
        except _REJECTIONS:
            return end - 1
    return None


def _check(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    if not messages:
        raise ValueError("There are no messages; give at least one, such as {'role': 'user', 'content': 'Hello'}.")
    for index, message in enumerate(messages):
        role, content = (message.get("role"), message.get("content")) if isinstance(message, Mapping) else (None, None)
        is_empty = content is None and role == "assistant" and "content" in message
        if not isinstance(role, str) or not (isinstance(content, str | list) or is_empty or "tool_calls" in message):
            raise ValueError(
                f"messages[{index}] is {message!r}; a message is a mapping whose 'role' and 'content' are texts."
            )
        _check_calls(index, message.get("tool_calls") or ())
    return messages


def _check_calls(index: int, calls: Any) -> None:
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if name is None:
            raise ValueError(
                f"messages[{index}] has the tool call {call!r:.80}; a tool call is a mapping whose 'function' has a "
                "'name' and 'arguments'."
            )


def _with_text(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the content of a message to text: join its parts; use an empty text if there is no content."""
    content = message.get("content") or ""
    if isinstance(content, list):
        parts: list[Any] = [part.get("text") if isinstance(part, Mapping) else None for part in content]
        if unread := [part for part, text in zip(content, parts, strict=True) if not isinstance(text, str)]:
            raise ValueError(f"messages[{index}] has the part {unread[0]!r:.80}; this model takes text only.")
        content = "".join(parts)
    return {**message, "content": content}
