"""Blend, the default: one tree of what a suffix match, BiTA's masks and Lookahead's window guess. Knows no models."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from antiphon.accel.drafting.draft import (
    EMPTY,
    Accepted,
    Draft,
    Drafter,
    Logits,
    Tokens,
    merge,
    trim,
    without_probes,
)
from antiphon.accel.drafting.drafters.bita import Bita, MaskWeights
from antiphon.accel.drafting.drafters.lookahead import Lookahead
from antiphon.accel.drafting.drafters.runners_up import RunnersUp, runners_up_of
from antiphon.accel.drafting.drafters.suffix_match import SuffixMatch

WINDOW = (5, 3, 5)
"""The smallest window of the paper's Table 3: 9 rows."""

WindowSize = tuple[int, int, int]
"""Lookahead's W, N and G: columns, tokens of an n-gram, and guesses."""


class Blend:
    """Drafts what its parts guess in one tree: equal paths are one row, and all rows share one budget.

    The first part is a `SuffixMatch` with these runners-up (``recycling`` is its parameter), or another ``drafter``
    without probes. With ``bita`` there are BiTA's masks, with ``window`` a window of `Lookahead` (W, N, G). Rows are
    taken by their chance, whoever guessed them, and masks by what their logits are worth; they also stand behind rows
    that were copied from a reference. The window is for requests without references (beside references it made
    SmolLM2's steps shorter), and its rows are taken where they are worth more than the rows that they displace.

    Raises:
        ValueError: there is a ``drafter``, and ``recycling`` for a suffix match that there is not; or ``window`` is
            out of range.
    """

    def __init__(
        self,
        bita: MaskWeights | None = None,
        *,
        window: WindowSize | None = None,
        recycling: bool | RunnersUp = True,
        drafter: Drafter | None = None,
    ) -> None:
        if drafter is not None and recycling is not True:
            raise ValueError("recycling belongs to the suffix match, which drafter replaces; give it to that drafter.")
        self.drafter: Drafter = SuffixMatch(recycling=recycling) if drafter is None else drafter
        self.runners_up = runners_up_of(self.drafter)
        self.bita_weights = bita
        self.bita = Bita(bita) if bita is not None else None
        self._window = Lookahead(*window, reads=False) if window else None  # the drafter reads
        self.lookahead: Lookahead | None = None

    @property
    def parts(self) -> tuple[type, ...]:
        """The classes of the parts: drafters of the same parts are worth the same."""
        return tuple(type(part) for part in (self.drafter, self.bita, self._window) if part is not None)

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> Draft:
        """All forget the last request; masks and window are in the first forward already."""
        self.drafter.begin(prompt, references)
        self.lookahead = self._window if prompt and not references else None
        masks = self.bita.begin(prompt, references) if self.bita else EMPTY
        window = self.lookahead.begin(prompt, references) if self.lookahead else None
        return merge(masks, window) if window else masks

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

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """All learn; the first part is shown no probes."""
        shown = logits.head(draft.candidates) if logits is not None and draft.probes else logits
        self.drafter.observe(without_probes(draft), accepted, shown)
        if self.bita:
            self.bita.observe(draft, accepted, logits)
        if self.lookahead:
            self.lookahead.observe(draft, accepted, logits)

    def _taken(self, tree: Draft, budget: int) -> Draft:
        """The rows of a tree that are worth most, and the masks behind them."""
        return self.bita.with_masks(tree, budget) if self.bita else trim(tree, budget, sys.maxsize)
