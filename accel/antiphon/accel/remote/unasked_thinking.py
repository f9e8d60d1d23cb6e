"""Prevent unrequested thinking of a model on a server from using up the limit of the answer."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

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
    """

    thinks_unasked: bool = False
    opens_in_thinking: bool = False
    refuses_switch: bool = False


@dataclass(slots=True)
class UnaskedThinking:
    """Decides for one stream how long thinking and answer may be.

    Args:
        name: Name of the model, for the warning.
        limit: Maximum tokens of the answer; None: thinking was requested, and counts towards the server's own limit.
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
