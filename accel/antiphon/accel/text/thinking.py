"""Separate a model's thinking from its answer, token by token."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from antiphon.accel.text.detokenize import Detokenizer
from antiphon.accel.text.stop_strings import partial_length

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


State = Literal["before", "thinking", "answer"]
"""Place in the output: before the thinking and the answer, in the thinking, or in the answer."""


@dataclass(frozen=True, slots=True)
class ThinkingFormat:
    """The marks around the thinking in a model's output.

    Attributes:
        start: Text that begins the thinking.
        end: Text that ends the thinking.
        closing: Text that ends the thinking and begins the answer, as the model was trained to write it.
        answer: Text that begins an answer without thinking; empty if there is no such text.
        marks: All marks to look for.
        has_channels: Whether the output is a sequence of messages with headers, as from gpt-oss.
        label: Text after ``start`` that is not part of the thinking.
    """

    start: str
    end: str
    closing: str
    answer: str = ""
    marks: tuple[str, ...] = ()
    has_channels: bool = False
    label: str = ""

    @property
    def opening(self) -> str:
        """Text with which a model begins its thinking."""
        return self.start + self.label

    def state_after(self, prompt: str) -> State:
        """Return the state at the beginning of the text that continues a prompt."""
        tail = prompt.rstrip()
        if tail.endswith(self.opening):
            return "thinking"
        return "answer" if tail.endswith(self.answer or self.end) else "before"


def _tags(start: str, end: str) -> ThinkingFormat:
    return ThinkingFormat(start, end, f"\n{end}\n\n", marks=(start, end))


CHANNELS = ThinkingFormat(
    start="<|channel|>analysis<|message|>",
    end="<|end|>",
    closing="<|end|><|start|>assistant<|channel|>final<|message|>",
    answer="<|channel|>final<|message|>",
    marks=("<|channel|>", "<|constrain|>", "<|start|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"),
    has_channels=True,
)
"""The format of gpt-oss: messages with a header, which names the channel, and a body."""

GEMMA = replace(_tags("<|channel>", "<channel|>"), closing="\n<channel|>", label="thought")
THINK = _tags("<think>", "</think>")
BRACKETS = (("[THINK]", "[/THINK]"), ("<|START_THINKING|>", "<|END_THINKING|>"))
_TAG = re.compile(r"</([^<>\s'\"{}/]*(?:think|thought|reason)[^<>\s'\"{}/]*)>", re.IGNORECASE)


def thinking_format(tokenizer: PreTrainedTokenizerBase) -> ThinkingFormat | None:
    """Return the marks found in the chat template or among the tokenizer's tokens; None if there are none."""
    template = str(tokenizer.chat_template or "")
    if "<|channel|>" in template and "<|message|>" in template:
        return CHANNELS
    if GEMMA.end in template:
        return GEMMA
    for start, end in BRACKETS:
        if end in template:
            return _tags(start, end)
    if found := _TAG.search(template):
        return _tags(f"<{found[1]}>", f"</{found[1]}>")
    return THINK if THINK.end in tokenizer.get_added_vocab() else None


@dataclass(frozen=True, slots=True)
class ThinkingStart:
    """The marks of a model, and the state in which its output begins."""

    format: ThinkingFormat
    state: State


class Split(NamedTuple):
    """New text of the thinking and of the answer."""

    thinking: str = ""
    answer: str = ""

    def then(self, other: Split) -> Split:
        """Return the two splits joined, this one first."""
        return Split(self.thinking + other.thinking, self.answer + other.answer)


class ThinkingReader:
    """Decodes token ids and separates thinking from the answer.

    A mark that is a single token is recognized by its id, so that the same characters in ordinary text are not a
    mark. Other marks are searched in the text. Thinking can only come before the answer. White space around the
    thinking is dropped. Without a `ThinkingStart`, all text is the answer.

    Args:
        start: The marks, and the state in which the output begins; None: the model does not think.
        context: Token ids before the first token, for the detokenizer.

    Attributes:
        state: The current part of the output, such as the thinking or the answer.
        has_thought: Whether there was thinking.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, start: ThinkingStart | None = None, context: Sequence[int] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, context)
        self._format = start.format if start else None
        self.state: State = start.state if start else "answer"
        self.has_thought = self.state == "thinking"
        marks = start.format.marks if start else ()
        known = tokenizer.get_added_vocab() if marks else {}
        self._mark_ids = {known[mark]: mark for mark in marks if mark in known}
        self._mark_texts = [mark for mark in marks if mark not in self._mark_ids.values()]
        self._held = ""  # may be the beginning of a mark
        self._header = ""  # text before it is known whether thinking or the answer begins
        self._label = ""  # text that may follow the start mark and is not thinking
        self._held_label = ""  # text that may be the beginning of the label
        self._space = ""  # white space that may be the end of the thinking
        self._skips_space = self.has_thought
        self._num_tokens = 0  # tokens before the first one of the answer
        self._has_answer = False

    @property
    def thinking_tokens(self) -> int:
        """Number of tokens before the answer, including marks, if the model has thought; else 0."""
        return self._num_tokens if self.has_thought else 0

    @property
    def pending(self) -> str:
        """Text at the end of the answer that later tokens may still change."""
        return self._held + self._detokenizer.pending if self.state == "answer" else ""

    def push(self, token: int) -> Split:
        """Add a token; return the new text that later tokens cannot change."""
        mark = self._mark_ids.get(token) if self._has_marks else None
        if mark is None:
            split = self._read(self._detokenizer.push(token))
        else:
            split = self._flush().then(self._read_mark(mark))
            self._detokenizer = Detokenizer(self._tokenizer, (token,))
        self._has_answer = self._has_answer or bool(split.answer)
        self._num_tokens += not self._has_answer
        return split

    def finish(self) -> Split:
        """Return the rest of the text; call it at the end of the output."""
        split = self._flush()
        if self.state == "before" and "<|" not in self._header:
            split = split.then(Split("", self._header))
        self._header = ""
        return split

    @property
    def _has_marks(self) -> bool:
        """Whether a mark can still follow."""
        return self._format is not None and (self._format.has_channels or self.state != "answer")

    def _flush(self) -> Split:
        text, self._held = self._held + self._detokenizer.pending, ""
        self._detokenizer = Detokenizer(self._tokenizer)
        return self._read_text(text)

    def _read(self, piece: str) -> Split:
        """Split a text that may contain marks."""
        split, text, self._held = Split(), self._held + piece, ""
        while self._has_marks and (found := [(at, each) for each in self._mark_texts if (at := text.find(each)) >= 0]):
            place, mark = min(found)
            split = split.then(self._read_text(text[:place])).then(self._read_mark(mark))
            text = text[place + len(mark) :]
        if self._has_marks:
            end = len(text) - partial_length(text, self._mark_texts)
            text, self._held = text[:end], text[end:]
        return split.then(self._read_text(text))

    def _read_text(self, text: str) -> Split:
        """Assign a text without marks to the thinking or to the answer."""
        if self.state == "before":
            self._header += text
            if self._may_be_header():
                return Split()
            text, self._header, self.state = self._header, "", "answer"
        if self._label and self.state == "thinking":
            text = self._held_label + text
            if self._label.startswith(text) and text != self._label:
                self._held_label = text
                return Split()
            text, self._label, self._held_label = text.removeprefix(self._label), "", ""
        if self._skips_space:
            text = text.lstrip()
            self._skips_space = not text
        if self.state == "answer":
            return Split("", text)
        text = self._space + text
        visible = text.rstrip()
        self._space = text[len(visible) :]
        return Split(visible, "")

    def _may_be_header(self) -> bool:
        """Return whether the text so far may still be followed by thinking."""
        header = self._header.strip()
        if self._format is None or not self._format.has_channels:
            return not header
        return "<|" in header or "assistant".startswith(header) or " to=".startswith(self._header[:4])

    def _read_mark(self, mark: str) -> Split:
        if self._format is not None and self._format.has_channels:
            return self._read_channel_mark(mark)
        is_start = self._format is not None and mark == self._format.start
        if is_start and self.state == "thinking":
            return Split() if self._skips_space else self._read_text(mark)
        self._enter("thinking" if is_start else "answer")
        self._label, self._held_label = self._format.label if is_start and self._format else "", ""
        self._skips_space = True
        return Split()

    def _read_channel_mark(self, mark: str) -> Split:
        """Read a mark of gpt-oss.

        A message to a recipient is a tool call. Its header and its body are part of the answer.
        """
        if mark in ("<|end|>", "<|call|>", "<|return|>"):
            self._enter("before")
        elif mark != "<|message|>":
            if self.state != "before":
                self._enter("before")
            self._header += mark
        elif self.state == "before":
            header = self._header
            is_call = " to=" in header
            is_thinking = "<|channel|>analysis" in header and not is_call
            self._enter("thinking" if is_thinking else "answer")
            self._skips_space = is_thinking
            begun = "" if header.startswith("<|start|>") else "<|start|>assistant"  # the prompt has it already
            return Split("", begun + header + mark) if is_call else Split()
        return Split()

    def _enter(self, state: State) -> None:
        self.state = state
        self.has_thought = self.has_thought or state == "thinking"
        self._header = self._space = ""
