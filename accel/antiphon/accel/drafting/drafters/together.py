"""All that can guess in one tree: another drafter's rows, BiTA's masks, Lookahead's window. Knows no models."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from antiphon.accel.drafting.draft import EMPTY, Accepted, Draft, Drafter, Tokens, merge, trim, without_probes
from antiphon.accel.drafting.drafters.bita import Bita
from antiphon.accel.drafting.drafters.blend import Blend
from antiphon.accel.drafting.drafters.lookahead import Lookahead
from antiphon.accel.drafting.drafters.runners_up import runners_up_of

if TYPE_CHECKING:
    from torch import Tensor

    from antiphon.accel.engines.torch.learned import Learned

WINDOW = (5, 3, 5)
"""The smallest window of the paper's Table 3: 9 rows."""

Setting = tuple[int, int, int]
"""Lookahead's W, N and G."""


class Together:
    """Drafts what ``drafter`` (by default `Blend`), BiTA and Lookahead guess: equal paths are one row, one budget.

    With ``learned`` BiTA's masks are asked, with ``window`` a window of `Lookahead` (W, N, G). Rows are taken by their
    chance, whoever guessed them. Masks are taken by what their answer is worth, and also stand behind rows that were
    copied from a reference. The window is for requests without references (beside them it made SmolLM2's steps
    shorter), and is asked where it promises more than the rows and masks that it displaces. ``drafter`` has no probes
    of its own.
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
        self.runners_up = runners_up_of(self.drafter)
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
        if self.lookahead is None:
            return self._taken(tree, budget)
        tree = merge(tree, self.lookahead.share(context[-1], range(0), slice(None), budget))
        window = self.lookahead.share(context[-1], self.lookahead.columns, slice(0), 0)
        whole, left = self._taken(tree, budget), budget - len(window)
        displaced = sorted(whole.chances, reverse=True)[max(left, 0) :]
        if left < 0 or sum(window.chances) <= sum(displaced):
            return whole
        return merge(self._taken(tree, left), window)

    def observe(self, draft: Draft, accepted: Accepted, logits: Tensor) -> None:
        """All learn; the drafter hears of no probes."""
        self.drafter.observe(without_probes(draft), accepted, logits[: 1 + draft.candidates])
        if self.bita:
            self.bita.observe(draft, accepted, logits)
        if self.lookahead:
            self.lookahead.observe(draft, accepted, logits)

    def _taken(self, tree: Draft, budget: int) -> Draft:
        """The rows of a tree that are worth most, and the masks behind them."""
        return self.bita.grouped(tree, budget) if self.bita else trim(tree, budget, sys.maxsize)
