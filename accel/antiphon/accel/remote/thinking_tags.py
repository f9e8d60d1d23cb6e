"""Separate the answer from thinking that a server leaves in the content, and end thinking that was not asked for."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Literal

from antiphon.accel.text.thinking import Split

TAGS = {f"<{name}>": f"</{name}>" for name in ("think", "thinking", "thought", "reasoning", "seed:think")} | {
    "[THINK]": "[/THINK]"
}
"""Marks with which models begin and end their thinking."""


class TaggedContent:
    """Splits content piece by piece. Text that may become a tag is held back until later text decides it.

    Args:
        is_open: Whether the content begins inside the thinking, because the prompt contains the start tag.

    Attributes:
        end: The tag that ends the thinking.
        state: Part of the content that is being read; "after" is between the thinking and the answer.
    """

    def __init__(self, is_open: bool = False) -> None:
        self.end = "</think>"
        self.state: Literal["before", "thinking", "after", "answer"] = "thinking" if is_open else "before"
        self._held = ""

    def push(self, text: str) -> Split:
        """Add a piece of content; return the new thinking and the new text of the answer."""
        self._held += text
        thinking = ""
        if self.state == "before":
            start = self._held.lstrip()
            if any(tag != start and tag.startswith(start) for tag in TAGS):
                return Split()
            tag = next((tag for tag in TAGS if start.startswith(tag)), "")
            self.state = "thinking" if tag else "answer"
            if tag:
                self.end, self._held = TAGS[tag], start.removeprefix(tag)
        if self.state == "thinking":
            thinking, end, self._held = self._held.partition(self.end)
            if end:
                self.state = "after"
            else:
                sizes = range(len(self.end) - 1, 0, -1)
                kept = next((size for size in sizes if thinking.endswith(self.end[:size])), 0)
                self._held = thinking[len(thinking) - kept :]
                return Split(thinking[: len(thinking) - kept])
        if self.state == "after":  # white space between thinking and answer belongs to neither
            self._held = self._held.lstrip()
            if not self._held:
                return Split(thinking)
            self.state = "answer"
        answer, self._held = self._held, ""
        return Split(thinking, answer)

    def finish(self) -> Split:
        """Return the held-back text; call it at the end of the content."""
        held, self._held = self._held, ""
        return Split(held) if self.state == "thinking" else Split("", held)


MAX_THOUGHTS = 16_384
"""Maximum number of chunks of thinking, so that a model whose thinking never ends is stopped."""


@dataclass(slots=True)
class ThinkingHabits:
    """Facts learned from earlier requests to a model; shared by all of its streams.

    Attributes:
        thinks_unasked: Whether the model thinks although it was told not to.
        opens_in_thinking: Whether the model's content begins inside the thinking, because the
            prompt has the start tag.
        refuses_switch: Whether the server rejects the fields that turn thinking off.
        takes_json_object: Whether the server takes a schema only in the format of llama-cpp-python.
    """

    thinks_unasked: bool = False
    opens_in_thinking: bool = False
    refuses_switch: bool = False
    takes_json_object: bool = False


@dataclass(slots=True)
class UnaskedThinking:
    """Decides for one stream how long thinking and answer may be.

    Args:
        name: Name of the model, for the warning.
        limit: Maximum tokens of the answer. None: no limit here, because thinking was requested and
            counts towards the server's own limit.
        has_limit: Whether the limit was sent to the server.
    """

    habits: ThinkingHabits
    name: str
    limit: int | None
    has_limit: bool = field(init=False)

    def __post_init__(self) -> None:
        self.has_limit = self.limit is None or not self.habits.thinks_unasked

    def must_restart(self) -> bool:
        """Return whether the request must be sent again, because thinking would use up its limit."""
        if self.limit is None or not self.has_limit:
            return False
        self.has_limit = False
        self.note()
        return True

    def note(self, *, opens_in_thinking: bool = False) -> None:
        """Record that the model thinks although it was told not to, and warn once."""
        self.habits.opens_in_thinking |= opens_in_thinking
        if not self.habits.thinks_unasked:
            self.habits.thinks_unasked = True
            warnings.warn(
                f"{self.name} thinks although it was asked not to; its thinking does not count in max_new_tokens.",
                stacklevel=2,
            )

    def is_over(self, num_thoughts: int, num_answers: int) -> bool:
        """Return whether an answer has reached its maximum number of chunks, if no limit was sent to the server."""
        return not self.has_limit and (num_answers >= (self.limit or 0) or num_thoughts >= MAX_THOUGHTS)
