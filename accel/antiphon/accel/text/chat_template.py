"""Applies a tokenizer's chat template: messages and tools to the text of a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["apply_chat_template", "tool_call_prefix"]

_NAME, _ARGUMENT = "TOOL-NAME", "ARGUMENT-NAME"


def apply_chat_template(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    add_generation_prompt: bool = True,
) -> str:
    """Return the text of a prompt: messages and tools as the chat template writes them.

    Args:
        messages: The conversation, from the first message on.
        tools: Tools that the model may call, as JSON schemas; the template has to write them.
        tokenizer: Tokenizer with a chat template.
        add_generation_prompt: Whether to begin the assistant's turn at the end.

    Raises:
        ValueError: A message is malformed, or the template is missing, rejects the messages or does not write tools.
    """
    text = _apply(messages, tools, tokenizer, add_generation_prompt=add_generation_prompt)
    if tools and text == _apply(messages, (), tokenizer, add_generation_prompt=add_generation_prompt):
        raise ValueError(
            f"The chat template of {tokenizer.name_or_path or 'this model'!r} does not write tools, so the model would "
            "not know them; use a model that was trained to call tools, or give none."
        )
    return text


def tool_call_prefix(
    tokenizer: PreTrainedTokenizerBase, tools: Sequence[Mapping[str, Any]], name: str | None = None
) -> str:
    """Return the text with which a tool call begins, in the syntax of the chat template.

    The syntax is read from a rendered example of an earlier call.

    Args:
        tokenizer: Tokenizer with a chat template.
        tools: Tools that the model may call.
        name: Tool to call; the returned text then ends before its arguments. None: any tool; the text then ends before
            the name of the tool.

    Returns:
        The beginning of the assistant's turn; empty if it cannot be found from the template.

    Raises:
        ValueError: As `apply_chat_template`.
    """
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
    *,
    add_generation_prompt: bool = True,
) -> str:
    from jinja2 import TemplateError

    _check(messages)
    if tokenizer.chat_template is None:
        raise ValueError(
            f"The tokenizer of {tokenizer.name_or_path or 'this model'!r} has no chat template and so cannot write "
            "messages; pass the prompt as one text (str), or set tokenizer.chat_template."
        )
    try:
        turns = [dict(message) for message in messages]
        schemas: Any = [dict(tool) for tool in tools] or None
        return str(
            tokenizer.apply_chat_template(
                turns, tools=schemas, add_generation_prompt=add_generation_prompt, tokenize=False
            )
        )
    except TemplateError as error:
        raise ValueError(f"The chat template rejects these messages ({error}); change their roles or order.") from error


def _check(messages: Sequence[Mapping[str, Any]]) -> None:
    if not messages:
        raise ValueError("There are no messages; give at least one, such as {'role': 'user', 'content': 'Hello'}.")
    for index, message in enumerate(messages):
        role, content = (message.get("role"), message.get("content")) if isinstance(message, Mapping) else (None, None)
        if not isinstance(role, str) or not (isinstance(content, str) or "tool_calls" in message):
            raise ValueError(
                f"messages[{index}] is {message!r}; a message is a mapping whose 'role' and 'content' are texts."
            )
