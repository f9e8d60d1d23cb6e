"""A prompt, raw text or the messages of a conversation, to token ids with one beginning of sequence at most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "Conversation",
    "CountedPrompt",
    "Message",
    "PromptInput",
    "TokenizedPrompt",
    "tool_call_prefix",
    "encode_prompt",
    "tokenize_prompt",
]

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
    assistant_prefix: str = ""
    tool_choice: Any = None


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """A prompt as its model reads it: the text, its token ids, and the characters (start, end) of each of them.

    Whoever has counted a prompt's tokens hands this on, and nobody tokenizes it again. ``offsets`` is empty where the
    tokenizer does not say them.
    """

    text: str
    tokens: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...] = ()

    @property
    def count(self) -> int:
        """How many tokens it has."""
        return len(self.tokens)

    def tokens_of(self, reference: str) -> tuple[int, ...]:
        """The prompt's own tokens that lie whole in a text which stands in it; none where it does not."""
        start = self.text.find(reference) if reference and self.offsets else -1
        if start < 0:
            return ()
        end = start + len(reference)
        inside = [place for place, (first, last) in enumerate(self.offsets) if start <= first < last <= end]
        return self.tokens[inside[0] : inside[-1] + 1] if inside else ()


@dataclass(frozen=True, slots=True)
class CountedPrompt:
    """A prompt whose tokens only its server knows: what it says, and about how many they are."""

    content: str | Sequence[Message] | Conversation
    count: int


PromptInput = str | Sequence[Message] | Conversation | TokenizedPrompt | CountedPrompt
"""What a model is asked to continue or to answer."""


def tokenize_prompt(prompt: PromptInput, tokenizer: PreTrainedTokenizerBase) -> TokenizedPrompt:
    """The text and token ids of a prompt; one that is tokenized already stays as it is.

    A text gets the special tokens that the tokenizer puts around any text. Messages are written by the chat template,
    which writes its own, and open the assistant's turn.

    Raises:
        ValueError: the prompt is empty, a message is malformed, or there is no chat template, or it refuses, or writes
            no tools.
    """
    if isinstance(prompt, TokenizedPrompt):
        return prompt
    if isinstance(prompt, CountedPrompt):
        prompt = prompt.content
    is_text = isinstance(prompt, str)
    text = prompt if isinstance(prompt, str) else _transcribe(prompt, tokenizer)
    says = tokenizer.is_fast
    found = tokenizer(text, add_special_tokens=is_text, verbose=False, return_offsets_mapping=says)
    tokens: list[int] = found.input_ids
    if not tokens:
        raise ValueError("The prompt has no tokens; give a text of at least one character, or messages.")
    offsets = ((start, end) for start, end in found["offset_mapping"]) if says else ()
    return TokenizedPrompt(text, tuple(tokens), tuple(offsets))


def encode_prompt(prompt: PromptInput, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The token ids of a prompt; see `tokenize`."""
    return list(tokenize_prompt(prompt, tokenizer).tokens)


def tool_call_prefix(
    tokenizer: PreTrainedTokenizerBase, tools: Sequence[Mapping[str, Any]], name: str | None = None
) -> str:
    """How a turn begins that calls one of these tools, up to its name, or with ``name`` up to that tool's arguments.

    It is read off the chat template, which writes earlier calls; empty where the template does not tell.

    Raises:
        ValueError: as `tokenize`.
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
    return text + conversation.assistant_prefix


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
