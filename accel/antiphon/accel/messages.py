"""A prompt, raw text or the messages of a conversation, to token ids with one beginning of sequence at most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Message", "encode"]

Message = Mapping[str, Any]
"""One turn of a conversation: its "role" ("system", "user", "assistant", ...) and its "content", a text."""


def encode(prompt: str | Sequence[Message], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The token ids of a prompt.

    A text gets the special tokens that the tokenizer puts around any text. Messages are written by the chat template,
    which writes its own, and open the assistant's turn.

    Raises:
        ValueError: the prompt is empty, a message is malformed, or there is no chat template, or it refuses.
    """
    is_text = isinstance(prompt, str)
    text = prompt if isinstance(prompt, str) else _transcribe(prompt, tokenizer)
    tokens: list[int] = tokenizer(text, add_special_tokens=is_text, verbose=False).input_ids
    if not tokens:
        raise ValueError("The prompt has no tokens; give a text of at least one character, or messages.")
    return tokens


def _transcribe(messages: Sequence[Message], tokenizer: PreTrainedTokenizerBase) -> str:
    from jinja2 import TemplateError

    _check(messages)
    if tokenizer.chat_template is None:
        raise ValueError(
            f"The tokenizer of {tokenizer.name_or_path or 'this model'!r} has no chat template and so cannot write "
            "messages; pass the prompt as one text (str), or set tokenizer.chat_template."
        )
    try:
        turns = [dict(message) for message in messages]
        return str(tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False))
    except TemplateError as error:
        raise ValueError(f"The chat template refuses these messages ({error}); change their roles or order.") from error


def _check(messages: Sequence[Message]) -> None:
    if not messages:
        raise ValueError("There are no messages; give at least one, such as {'role': 'user', 'content': 'Hello'}.")
    for index, message in enumerate(messages):
        role, content = (message.get("role"), message.get("content")) if isinstance(message, Mapping) else (None, None)
        if not isinstance(role, str) or not (isinstance(content, str) or "tool_calls" in message):
            raise ValueError(
                f"messages[{index}] is {message!r}; a message is a mapping whose 'role' and 'content' are texts."
            )
