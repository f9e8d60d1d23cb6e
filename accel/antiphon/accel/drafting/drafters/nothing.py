"""Plain decoding: the drafter that never drafts. It is the baseline of every comparison."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.accel.drafting.draft import EMPTY, Accepted, Draft, Logits, Tokens


class Nothing:
    """Never drafts: every forward emits one token, as plain decoding does."""

    __slots__ = ()

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> None:
        """Read nothing."""

    def propose(self, context: Tokens, budget: int) -> Draft:
        """An empty draft, whatever the budget."""
        return EMPTY

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """Learn nothing."""
