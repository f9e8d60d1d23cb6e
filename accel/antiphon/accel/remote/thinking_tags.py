"""Separate the answer from thinking that a server leaves in the content, between tags."""

from __future__ import annotations

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
