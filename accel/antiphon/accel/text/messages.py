"""Prompts: a text or the messages of a conversation, and their token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from antiphon.accel.text.chat_template import apply_chat_template
from antiphon.accel.text.parameters import check_texts
from antiphon.accel.text.thinking import ThinkingStart, thinking_format
from antiphon.accel.text.thinking_switch import template_variables

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


Message = Mapping[str, Any]
"""One turn of a conversation: its "role" ("system", "user", "assistant", ...) and its "content", a text."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages and tools for a model.

    Attributes:
        tools: Tools that the model may call, as JSON schemas.
        assistant_prefix: Beginning of the assistant's turn. It is part of the prompt; the completion continues it
            without repeating it.
        tool_choice: Only for models on a server: whether a tool must be called, and which one, in the format of
            OpenAI's ``tool_choice``. To force a call by a local model, use ``assistant_prefix``.
        thinking: Whether the model thinks before it answers; None: the default of its chat template.
        template_variables: Further variables of the chat template.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    assistant_prefix: str = ""
    tool_choice: Any = None
    thinking: bool | None = None
    template_variables: Mapping[str, Any] = field(default_factory=dict)


def as_conversation(prompt: Sequence[Message] | Conversation) -> Conversation:
    """Return messages as a conversation."""
    return prompt if isinstance(prompt, Conversation) else Conversation(prompt)


class PromptSpan(NamedTuple):
    """A part of a prompt that the answer may repeat: the tokens from ``start`` up to, but not including, ``end``."""

    start: int
    end: int


ReferenceInput: TypeAlias = str | PromptSpan
"""What drafts are copied from: a text, or a span of the prompt."""


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """A tokenized prompt. Pass it in place of the prompt, so that the prompt is not tokenized again.

    Attributes:
        offsets: Characters (start, end) of each token; empty if the tokenizer does not report them.
        has_added_tokens: Whether the tokenizer added its special tokens, such as a beginning-of-sequence token.
        thinking: How the model's output separates thinking from the answer; None: the output is only an answer.
    """

    text: str
    tokens: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...] = ()
    has_added_tokens: bool = False
    thinking: ThinkingStart | None = None

    @property
    def count(self) -> int:
        """Number of tokens."""
        return len(self.tokens)

    def span_of(self, text: str) -> PromptSpan | None:
        """Find a text in the prompt; return the span of the tokens that are completely inside the text, or None."""
        start = self.text.find(text) if text and self.offsets else -1
        if start < 0:
            return None
        end = start + len(text)
        inside = [place for place, (first, last) in enumerate(self.offsets) if start <= first < last <= end]
        return PromptSpan(inside[0], inside[-1] + 1) if inside else None

    def tokens_of(self, reference: ReferenceInput) -> tuple[int, ...]:
        """Return the tokens of a span, or of a text found in the prompt; empty if the text is not found.

        Tokens copied from the prompt match the model's output better than tokens of the separately tokenized text.
        """
        span = reference if isinstance(reference, PromptSpan) else self.span_of(reference)
        return () if span is None else self.tokens[span.start : span.end]


@dataclass(frozen=True, slots=True)
class CountedPrompt:
    """A prompt for a model on a server, and its number of tokens. Only the server knows the tokens."""

    content: str | Sequence[Message] | Conversation
    count: int


PromptInput = str | Sequence[Message] | Conversation | TokenizedPrompt | CountedPrompt
"""A prompt for a language model: a text to continue, or messages to answer."""


def tokenize_prompt(prompt: PromptInput, tokenizer: PreTrainedTokenizerBase) -> TokenizedPrompt:
    """Return the text and the token ids of a prompt.

    Messages are rendered by the chat template (`antiphon.accel.text.chat_template`). The rendered
    text includes special tokens and the beginning of the assistant's turn. A text gets the special
    tokens that the tokenizer adds to every text. So there is at most one beginning-of-sequence
    token.

    Args:
        prompt: The prompt; a `TokenizedPrompt` is returned unchanged.

    Raises:
        ValueError: The prompt is empty, or `apply_chat_template` raises the error.
    """
    if isinstance(prompt, TokenizedPrompt):
        return prompt
    if isinstance(prompt, CountedPrompt):
        prompt = prompt.content
    if isinstance(prompt, str):
        return _tokenize(prompt, tokenizer, add_special_tokens=True)
    chat = as_conversation(prompt)
    variables = template_variables(tokenizer, chat.template_variables, chat.thinking)
    text = apply_chat_template(chat.messages, chat.tools, tokenizer, variables=variables)
    marks = thinking_format(tokenizer)
    start = None if marks is None else ThinkingStart(marks, marks.state_after(text))
    text, start = _begin_text(text, start, chat.assistant_prefix)
    return replace(_tokenize(text, tokenizer, add_special_tokens=False), thinking=start)


def with_template_variables(prompt: PromptInput, thinking: bool | None, variables: Mapping[str, Any]) -> PromptInput:
    """Convert messages to a conversation with variables of the chat template; return other prompts unchanged.

    Args:
        thinking: Whether to turn thinking on or off; None: as set in the conversation.
    """
    if isinstance(prompt, str | TokenizedPrompt | CountedPrompt) or (thinking is None and not variables):
        return prompt
    return add_variables(as_conversation(prompt), thinking, variables)


def add_variables(conversation: Conversation, thinking: bool | None, variables: Mapping[str, Any]) -> Conversation:
    """Return a conversation with further variables of the chat template.

    Args:
        thinking: Whether to turn thinking on or off; None: as set in the conversation.
    """
    return replace(
        conversation,
        thinking=conversation.thinking if thinking is None else thinking,
        template_variables={**conversation.template_variables, **variables},
    )


def _begin_text(prompt: str, start: ThinkingStart | None, prefix: str) -> tuple[str, ThinkingStart | None]:
    """End the thinking and append ``prefix``; return the text, and the state in which the output begins.

    If the prefix begins with the start mark of thinking, the thinking is begun instead of ended.
    """
    if not prefix or start is None:
        return prompt + prefix, start
    begun, marks = prefix.lstrip(), start.format
    if begun.startswith(marks.start):
        prompt = prompt.rstrip().removesuffix(marks.opening) if start.state == "thinking" else prompt
        is_open = marks.end not in begun
        return prompt + prefix, ThinkingStart(marks, "thinking") if is_open else None
    return prompt + {"thinking": marks.closing, "before": marks.answer, "answer": ""}[start.state] + prefix, None


def begin_answer(prompt: TokenizedPrompt, text: str, tokenizer: PreTrainedTokenizerBase) -> TokenizedPrompt:
    """Append a text to a prompt, and tokenize both as one text.

    If the prompt begins the model's thinking, the thinking is ended before the appended text.
    """
    if not text:
        return prompt
    begun, start = _begin_text(prompt.text, prompt.thinking, text)
    return replace(_tokenize(begun, tokenizer, add_special_tokens=prompt.has_added_tokens), thinking=start)


def _tokenize(text: str, tokenizer: PreTrainedTokenizerBase, *, add_special_tokens: bool) -> TokenizedPrompt:
    has_offsets = tokenizer.is_fast
    encoded = tokenizer(text, add_special_tokens=add_special_tokens, verbose=False, return_offsets_mapping=has_offsets)
    tokens: list[int] = encoded.input_ids
    if not tokens:
        raise ValueError("The prompt has no tokens; give a text of at least one character, or messages.")
    offsets = ((start, end) for start, end in encoded["offset_mapping"]) if has_offsets else ()
    return TokenizedPrompt(text, tuple(tokens), tuple(offsets), add_special_tokens)


def encode_prompt(prompt: PromptInput, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the token ids of a prompt; see `tokenize_prompt`."""
    return list(tokenize_prompt(prompt, tokenizer).tokens)


def check_references(references: Sequence[ReferenceInput]) -> list[str]:
    """Return the references that are texts; leave out spans of the prompt.

    Raises:
        TypeError: ``references`` is a single text, or an item is neither a text nor a span.
    """
    if isinstance(references, str):
        return check_texts("references", references)
    return check_texts("references", [each for each in references if not isinstance(each, PromptSpan)])
