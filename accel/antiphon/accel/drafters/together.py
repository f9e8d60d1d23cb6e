"""All that can guess in one tree: another drafter's rows, BiTA's masks, Lookahead's window. Knows no models."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from antiphon.accel.draft import EMPTY, Accepted, Draft, Drafter, Tokens, merge, trim, without_probes
from antiphon.accel.drafters.bita import Bita
from antiphon.accel.drafters.blend import Blend
from antiphon.accel.drafters.lookahead import Lookahead

if TYPE_CHECKING:
    from torch import Tensor

    from antiphon.accel.learned import Learned

WINDOW = (5, 3, 5)
"""The smallest window of the paper's Table 3: 9 rows."""

Setting = tuple[int, int, int]
"""Lookahead's W, N and G."""


class Together:
    """Drafts what ``drafter`` (by default `Blend`), BiTA and Lookahead guess: equal paths are one row, one budget.

    With ``learned`` BiTA's masks are asked, with ``window`` a window of `Lookahead` (W, N, G). Rows are taken by their
    chance, whoever guessed them. Masks are taken by what their answer is worth, and also stand behind rows that were
    copied from a reference. The window is for requests without references, and is asked where it promises more than
    the rows that it displaces: beside references it took steps of SmolLM2's from 3.13 tokens to 2.96 at 32 rows, and
    without them from 1.80 to 1.85. ``drafter`` has no probes of its own.
    """

    def __init__(
        self,
        learned: Learned | None = None,
        drafter: Drafter | None = None,
        *,
        window: Setting | None = None,
    ) -> None:
        self.learned = learned
        self.drafter: Drafter = Blend() if drafter is None else drafter
        self.bita = Bita(learned) if learned else None
        self._window = Lookahead(*window, reads=False) if window else None  # the drafter reads
        self.lookahead: Lookahead | None = None

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> Draft:
        """All forget the last request; masks and window are asked from the prompt's last token on."""
        self.drafter.begin(prompt, references)
        self.lookahead = self._window if prompt and not references else None
        asked = self.bita.begin(prompt, references) if self.bita else EMPTY
        window = self.lookahead.begin(prompt, references) if self.lookahead else None
        return merge(asked, window) if window else asked

    def propose(self, context: Tokens, budget: int) -> Draft:
        """One tree of at most ``budget`` rows, masks and window included."""
        tree = self.drafter.propose(context, budget)
        if self.bita:
            tree = merge(tree, self.bita.guesses())
        window = EMPTY
        if self.lookahead:
            pooled = self.lookahead.propose(context, budget)
            window = self.lookahead.share(context[-1], self.lookahead.columns, slice(0), 0)
            tree = merge(tree, without_probes(pooled))
            window = window if self._pays(window, tree, budget) else EMPTY
        left = budget - len(window)
        tree = self.bita.grouped(tree, left) if self.bita else trim(tree, left, sys.maxsize)
        return merge(tree, window) if window else tree

    def observe(self, draft: Draft, accepted: Accepted, logits: Tensor) -> None:
        """All learn; the drafter hears of no probes."""
        self.drafter.observe(without_probes(draft), accepted, logits[: 1 + draft.candidates])
        if self.bita:
            self.bita.observe(draft, accepted, logits)
        if self.lookahead:
            self.lookahead.observe(draft, accepted, logits)

    def _pays(self, window: Draft, tree: Draft, budget: int) -> bool:
        """Whether a window is worth more than the rows that would have to go for it."""
        if not window or len(window) > budget:
            return False
        displaced = sorted(tree.chances, reverse=True)[budget - len(window) : budget]
        return sum(window.chances) > sum(displaced)
