"""BiTA: trained mask tokens behind every draft row predict further tokens (Lin et al. 2024).

This module handles drafts and logits only; the engine feeds the trained weights to the model.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from itertools import accumulate
from typing import Literal, Protocol, get_args

from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted, Draft, Logits, Tokens, take_rows

Shape = Literal["triangle", "rectangle", "chain"]
"""Number of guesses per mask.

"triangle": one fewer than the previous mask; "rectangle": as many as the first; "chain": one.
"""

INITIAL_ACCEPTANCE = (0.4, 0.15, 0.06)
"""Initial acceptance rates of paths of one, two and three guesses (one guess per mask)."""

MEMORY = 16
"""Acceptance rates are moving averages over about this many steps."""

MIN_END_SHARE = 0.05
"""Minimum chance that the accepted path ends at a row, as a share of the row's chance. The row's
chance minus its children's chances would be too low, because the latter are overestimated.
"""

_Guesses = list[tuple[int, float]]


class MaskWeights(Protocol):
    """The trained weights of BiTA for one model.

    The drafter only needs the number of masks; the engine uses the weights.
    """

    @property
    def masks(self) -> Sized:
        """Embeddings of the mask tokens, one entry each."""


class Bita:
    """A `Drafter` that drafts the predictions of trained mask tokens. Mask tokens follow every row of its drafts.

    Level d of the tree contains the best guesses of the d-th mask behind the last accepted row.
    Only the best guess of a level has children: the guesses of the next level. A group of mask
    tokens (probes) follows the root and every row. So one forward pass verifies this draft and
    produces the next draft, whichever row is accepted. With m masks a full draft has 1 + m rows for
    every guess, and m for the root (section 3.3 of the paper, "efficient tree-based decoding"). A
    smaller budget keeps the rows of the highest value. The value of a guess is its chance. The
    value of a mask is a product: the chance that the accepted path ends at the row before the mask,
    times the acceptance rate of the mask's guesses.

    Args:
        weights: Trained weights for one model; other models refuse them.
        k: Number of guesses of the first mask.
        shape: Number of guesses of the other masks, see `Shape`.

    Raises:
        ValueError: ``k`` or ``shape`` is out of range.
    """

    def __init__(self, weights: MaskWeights, k: int = 5, *, shape: Shape = "triangle") -> None:
        if k < 1:
            raise ValueError(f"k is {k}; a mask makes at least 1 guess.")
        if shape not in get_args(Shape):
            raise ValueError(f"shape is {shape!r}; choose one of {', '.join(get_args(Shape))}.")
        self.bita_weights = weights
        self.masks = len(weights.masks)
        self.level_widths = level_widths(k, shape, self.masks)
        self.begin((), ())

    @property
    def max_rows(self) -> int:
        """Largest number of rows of a draft: all guesses, and a group of masks behind the root and each guess."""
        return (1 + sum(self.level_widths)) * (1 + self.masks) - 1

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> Draft:
        """Forget the previous request and return a draft of masks behind the last token of the prompt."""
        self._guesses: list[_Guesses] = []
        self._acceptance = initial_acceptance(self.masks)
        return self.with_masks(EMPTY, self.masks)

    def propose(self, context: Tokens, budget: int) -> Draft:
        """Return at most ``budget`` rows: the guesses from the last forward pass's masks, and new masks behind them."""
        return self.with_masks(self.guesses(), budget)

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """Read, from the logits, the guesses of the masks behind the last accepted row."""
        for place in range(len(self._guesses)):
            self._acceptance[place] += ((len(accepted.path) > place) - self._acceptance[place]) / MEMORY
        self._guesses = []
        group = _masks_behind(draft, accepted.path[-1] if accepted.path else ROOT)
        if not group or logits is None:
            return
        tokens, chances = logits.top_k(group, min(max(self.level_widths), logits.vocab_size))
        for line, shares, width in zip(tokens.tolist(), chances.tolist(), self.level_widths, strict=False):
            self._guesses.append(list(zip(line, shares, strict=True))[:width])

    def guesses(self) -> Draft:
        """Return the tree of the masks' guesses, without probes."""
        tokens: list[int] = []
        parents: list[int] = []
        chances: list[float] = []
        parent, above = ROOT, 1.0
        for level in self._guesses:
            first = len(tokens)
            for token, chance in level:
                tokens.append(token)
                parents.append(parent)
                chances.append(above * min(chance, 1.0))
            parent, above = first, chances[first]
        return Draft.unchecked(tuple(tokens), tuple(parents), tuple(chances))

    def with_masks(self, draft: Draft, budget: int) -> Draft:
        """Return the most valuable rows of a draft and of the mask rows that follow its rows."""
        rows = [(-chance, row, 0) for row, chance in enumerate(draft.chances)]
        for row, end in _end_chances(draft).items():
            acceptance = accumulate(self._acceptance, min, initial=1.0)
            rows += [(-end * rate, row, place) for place, rate in enumerate(acceptance) if place]
        kept = sorted(rows, key=lambda each: (each[0], each[2], each[1]))[: max(budget, 0)]
        return _masked(draft, sorted((row, place, -minus) for minus, row, place in kept))


def initial_acceptance(masks: int) -> list[float]:
    """Return `INITIAL_ACCEPTANCE` for ``masks`` masks; entry i is the acceptance rate of paths of i + 1 guesses."""
    return [*INITIAL_ACCEPTANCE, *[INITIAL_ACCEPTANCE[-1]] * masks][:masks]


def level_widths(k: int, shape: Shape, masks: int) -> list[int]:
    """Return the number of guesses of each mask.

    Args:
        k: Guesses of the first mask.
        shape: How the number changes from mask to mask.
    """
    if shape == "chain":
        return [1] * masks
    return [max(k - place, 1) if shape == "triangle" else k for place in range(masks)]


def _end_chances(draft: Draft) -> dict[int, float]:
    """Return, for the root and every row, the chance that the accepted path ends at it."""
    ends = {ROOT: 1.0, **dict(enumerate(draft.chances))}
    for parent, chance in zip(draft.parents, draft.chances, strict=True):
        ends[parent] -= chance
    return {row: max(end, MIN_END_SHARE * (1.0 if row == ROOT else draft.chances[row])) for row, end in ends.items()}


def _masked(draft: Draft, kept: list[tuple[int, int, float]]) -> Draft:
    """Return a draft with only the rows and masks in ``kept``.

    ``kept`` has ascending tuples (row, place, chance). Place 0 is the row itself; place p is the p-th mask after it.
    """
    rows = [row for row, place, _ in kept if place == 0]
    whole = take_rows(draft, rows)
    places = {row: index for index, row in enumerate(rows)} | {ROOT: ROOT}
    tokens, parents, chances = list(whole.tokens), list(whole.parents), list(whole.chances)
    for row, place, worth in kept:
        if place:
            parents.append(places[row] if place == 1 else len(tokens) - 1)
            tokens.append(-place)
            chances.append(worth)
    return Draft.unchecked(tuple(tokens), tuple(parents), tuple(chances), len(tokens) - len(rows))


def _masks_behind(draft: Draft, row: int) -> list[int]:
    """Return the masks after a row, in their order."""
    group: list[int] = []
    for probe in range(len(draft) - draft.num_probes, len(draft)):
        if draft.parents[probe] == row and draft.tokens[probe] == -1 - len(group):
            group.append(probe)
            row = probe
    return group
