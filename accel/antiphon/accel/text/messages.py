"""A prompt, raw text or the messages of a conversation, to token ids with one beginning of sequence at most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Conversation", "Message", "Prompt", "call_opening", "encode"]

Message = Mapping[str, Any]
"""One turn of a conversation: its "role" ("system", "user", "assistant", ...) and its "content", a text."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, the tools that the model may call, as JSON schemas, and the first words of its turn, if they are given.

    The completion goes on from these first words and does not repeat them. ``choice`` says to a server whether a tool
    has to be called, and which, in OpenAI's words (``tool_choice``); a model that is run here is told by ``opening``.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    opening: str = ""
    choice: Any = None


Prompt = str | Sequence[Message] | Conversation
"""What a model is asked to continue or to answer."""


def encode(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The token ids of a prompt.

    A text gets the special tokens that the tokenizer puts around any text. Messages are written by the chat template,
    which writes its own, and open the assistant's turn.

    Raises:
        ValueError: the prompt is empty, a message is malformed, or there is no chat template, or it refuses, or writes
            no tools.
    """
    is_text = isinstance(prompt, str)
    text = prompt if isinstance(prompt, str) else _transcribe(prompt, tokenizer)
    tokens: list[int] = tokenizer(text, add_special_tokens=is_text, verbose=False).input_ids
    if not tokens:
        raise ValueError("The prompt has no tokens; give a text of at least one character, or messages.")
    return tokens


def call_opening(
    tokenizer: PreTrainedTokenizerBase, tools: Sequence[Mapping[str, Any]], name: str | None = None
) -> str:
    """How a turn begins that calls one of these tools, up to its name, or with ``name`` up to that tool's arguments.

    It is read off the chat template, which writes earlier calls; empty where the template does not tell.

    Raises:
        ValueError: as `encode`.
    """
    asked = {"role": "user", "content": "?"}
    function = {"name": _NAME, "arguments": {_ARGUMENT: 1}}
    called = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "id": "0" * 9, "function": function}],
    }
    before = _write([asked], tools, tokenizer)
    whole = _write([asked, called], tools, tokenizer, is_answered=True)
    opening, _, rest = whole.removeprefix(before).partition(_NAME)
    if not rest or not whole.startswith(before):
        return ""
    until, _, is_told = rest.partition(f'{{"{_ARGUMENT}"')
    return opening if name is None else opening + name + (until if is_told else "")


_NAME, _ARGUMENT = "TOOL-NAME", "ARGUMENT-NAME"


def _transcribe(prompt: Sequence[Message] | Conversation, tokenizer: PreTrainedTokenizerBase) -> str:
    conversation = prompt if isinstance(prompt, Conversation) else Conversation(prompt)
    text = _write(conversation.messages, conversation.tools, tokenizer)
    if conversation.tools and text == _write(conversation.messages, (), tokenizer):
        raise ValueError(
            f"The chat template of {tokenizer.name_or_path or 'this model'!r} does not write tools, so the model would "
            "never hear of them; take a model that was trained to call tools, or give none."
        )
    return text + conversation.opening


def _write(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    is_answered: bool = False,
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
        offered: Any = [dict(tool) for tool in tools] or None
        return str(
            tokenizer.apply_chat_template(turns, tools=offered, add_generation_prompt=not is_answered, tokenize=False)
        )
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
