"""Another drafter's rows and BiTA's guesses in one tree, with masks behind the likely rows of both. Knows no models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from antiphon.accel.draft import Accepted, Draft, Drafter, Tokens, merge, without_probes
from antiphon.accel.drafters.bita import Bita
from antiphon.accel.drafters.blend import Blend

if TYPE_CHECKING:
    from torch import Tensor

    from antiphon.accel.learned import Learned


class Together:
    """Drafts what ``drafter`` (by default `Blend`) and BiTA guess: equal paths are one row, under one budget.

    Rows are taken by their chance, whoever guessed them, and masks by what their answer is worth: they also stand
    behind rows that were copied from a reference, and guess on from there. ``drafter`` has no probes of its own.
    """

    def __init__(self, learned: Learned, drafter: Drafter | None = None) -> None:
        self.learned = learned
        self.drafter: Drafter = Blend() if drafter is None else drafter
        self.bita = Bita(learned)

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> Draft:
        """Both forget the last request; the masks ask what comes after the prompt."""
        self.drafter.begin(prompt, references)
        return self.bita.begin(prompt, references)

    def propose(self, context: Tokens, budget: int) -> Draft:
        """One tree of at most ``budget`` rows, masks included."""
        return self.bita.grouped(merge(self.drafter.propose(context, budget), self.bita.guesses()), budget)

    def observe(self, draft: Draft, accepted: Accepted, logits: Tensor) -> None:
        """Both learn; the other drafter hears of no masks."""
        self.drafter.observe(without_probes(draft), accepted, logits[: 1 + draft.candidates])
        self.bita.observe(draft, accepted, logits)
