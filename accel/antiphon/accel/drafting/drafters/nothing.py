"""Plain decoding, the baseline of every comparison: a drafter that never drafts."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.accel.drafting.draft import EMPTY, Accepted, Draft, Logits, Tokens


class Nothing:
    """A `Drafter` that never drafts: every forward pass emits one token, as in plain decoding."""

    __slots__ = ()

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> None:
        """Ignore the request."""

    def propose(self, context: Tokens, budget: int) -> Draft:
        """Return the empty draft."""
        return EMPTY

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """Ignore the step."""
