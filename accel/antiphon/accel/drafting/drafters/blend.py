"""Blend, the default drafter: one tree of a suffix match, a draft head, BiTA's masks and Lookahead's window."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from antiphon.accel.drafting.draft import (
    EMPTY,
    Accepted,
    Draft,
    Logits,
    Tokens,
    merge,
    trim,
    without_probes,
)
from antiphon.accel.drafting.drafters.bita import Bita, MaskWeights
from antiphon.accel.drafting.drafters.head import DraftHead, Head
from antiphon.accel.drafting.drafters.lookahead import Lookahead
from antiphon.accel.drafting.drafters.recycling_table import RecyclingTable
from antiphon.accel.drafting.drafters.suffix_match import SuffixMatch

WINDOW = (5, 3, 5)
"""The smallest window of the paper's Table 3: 9 rows."""

WindowSize = tuple[int, int, int]
"""Lookahead's W, N and G: columns, tokens of an n-gram, and guesses."""


class Blend:
    """A `Drafter` that merges the drafts of its parts into one tree, whose rows share one budget.

    Equal paths become one row. Rows are selected by their chance, and masks by the expected tokens from their logits,
    whichever part proposed them. Masks also follow rows that were copied from a reference. The window is used only
    for requests without references, because with references it lowered the tokens per step of SmolLM2. It is also
    left out if its rows are worth less than the rows that they displace.

    Args:
        bita: BiTA weights; if given, the masks are added.
        head: A trained head of the model; if given, its guesses are added when they are worth their time.
        window: W, N and G of a `Lookahead` window; if given, it is added.
        recycling: As for `SuffixMatch`.

    Raises:
        ValueError: ``window`` is out of range.
    """

    def __init__(
        self,
        bita: MaskWeights | None = None,
        *,
        head: DraftHead | None = None,
        window: WindowSize | None = None,
        recycling: bool | RecyclingTable = True,
    ) -> None:
        self.drafter = SuffixMatch(recycling=recycling)
        self.head = None if head is None else Head(head)
        self.bita_weights = bita
        self.bita = Bita(bita) if bita is not None else None
        # The window takes no n-grams from the prompt; the suffix match already drafts from it.
        self._window = Lookahead(*window, prompt_as_reference=False) if window else None
        self.lookahead: Lookahead | None = None

    def use_table(self, table: RecyclingTable | None) -> None:
        """Share a recycling table with other requests, or use no table; ignored if ``recycling`` was given."""
        self.drafter.use_table(table)

    @property
    def recycling_table(self) -> RecyclingTable | None:
        """The recycling table of the suffix match."""
        return self.drafter.recycling_table

    @property
    def parts(self) -> tuple[type, ...]:
        """Classes of the parts. Drafters with equal ``parts`` share acceptance statistics."""
        return tuple(type(part) for part in (self.drafter, self.head, self.bita, self._window) if part is not None)

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> Draft:
        """Begin a request in all parts; return the masks and window rows for the first forward pass."""
        self.drafter.begin(prompt, references)
        if self.head:
            self.head.begin(prompt, references)
        self.lookahead = self._window if prompt and not references else None
        masks = self.bita.begin(prompt, references) if self.bita else EMPTY
        window = self.lookahead.begin(prompt, references) if self.lookahead else None
        return merge(masks, window) if window else masks

    def propose(self, context: Tokens, budget: int) -> Draft:
        """Return one tree of at most ``budget`` rows, including masks and window."""
        tree = self.drafter.propose(context, budget)
        if self.head:
            tree = self.head.extend(tree, budget)
        if self.bita:
            tree = merge(tree, self.bita.guesses())
        if self.lookahead is None:
            return self._trimmed(tree, budget)
        tree = merge(tree, self.lookahead.share(context[-1], range(0), slice(None), budget))
        window = self.lookahead.share(context[-1], self.lookahead.columns, slice(0), 0)
        whole, left = self._trimmed(tree, budget), budget - len(window)
        displaced = sorted(whole.chances, reverse=True)[max(left, 0) :]
        if left < 0 or sum(window.chances) <= sum(displaced):
            return whole
        return merge(self._trimmed(tree, left), window)

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """Pass the step to all parts; the first part gets no probes."""
        own_logits = logits.head(draft.num_candidates) if logits is not None and draft.num_probes else logits
        self.drafter.observe(without_probes(draft), accepted, own_logits)
        if self.head:
            self.head.observe(draft, accepted, logits)
        if self.bita:
            self.bita.observe(draft, accepted, logits)
        if self.lookahead:
            self.lookahead.observe(draft, accepted, logits)

    def _trimmed(self, tree: Draft, budget: int) -> Draft:
        """Return the most valuable rows of a tree, with masks behind them if there are BiTA weights."""
        return self.bita.with_masks(tree, budget) if self.bita else trim(tree, budget, sys.maxsize)
