"""BiTA: trained mask tokens guess what comes after the next token, behind every draft row (Lin et al. 2024).

Knows drafts and logits; the trained weights themselves are the engine's to feed.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from itertools import accumulate
from typing import Literal, Protocol, get_args

from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted, Draft, Logits, Tokens, select

Shape = Literal["triangle", "rectangle", "chain"]
"""How many guesses each mask makes: one fewer than the mask before it, as many, or one."""

HOLD = (0.4, 0.15, 0.06)
"""How often the guesses of the first mask, of the first two, and so on, are accepted: what a request begins with."""

MEMORY = 16
"""Acceptance is a moving average over about this many steps."""

LEAST = 0.05
"""The chance that the accepted path ends at a row is at least this share of the row's own chance. The difference to the
chances of its children would be too little: these are overestimated."""

_Guesses = list[tuple[int, float]]


class MaskWeights(Protocol):
    """What BiTA was trained to for one model: the engine feeds it, a drafter needs only the number of masks."""

    @property
    def masks(self) -> Sized:
        """The mask tokens' embeddings, one entry for each."""


class Bita:
    """Drafts a tree from the logits of the masks behind the last accepted row, and puts masks behind every row of it.

    Level d of the tree has the best guesses of the d-th mask: ``k`` of the first, and by ``shape`` as many or fewer of
    the others. Only the best guess of a level has children, the guesses of the next. Every row, and the root,
    has a group of mask tokens (probes) of its own behind it, so that the next draft exists whichever row is accepted:
    one forward verifies this draft and makes the next. With m masks a full draft has 1 + m rows for every guess and m
    more, as in the paper (section 3.3, "efficient tree-based decoding"). Under a smaller budget it has the rows worth
    most: guesses by their chance, masks by the chance that the accepted path ends where they stand, times how often
    guesses of that mask have been accepted.

    The ``weights`` belong to one model, and are refused by any other.

    Raises:
        ValueError: ``k`` or ``shape`` is out of range.
    """

    def __init__(self, weights: MaskWeights, k: int = 5, *, shape: Shape = "triangle") -> None:
        if k < 1:
            raise ValueError(f"k is {k}; a mask guesses at least 1 token.")
        if shape not in get_args(Shape):
            raise ValueError(f"shape is {shape!r}; choose one of {', '.join(get_args(Shape))}.")
        self.bita_weights = weights
        self.masks = len(weights.masks)
        self.widths = widths(k, shape, self.masks)
        self.begin((), ())

    @property
    def rows(self) -> int:
        """The most rows of a draft: all guesses, and a group of masks behind each of them and behind the root."""
        return (1 + sum(self.widths)) * (1 + self.masks) - 1

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> Draft:
        """Forget the last request; the draft has masks behind the prompt's last token."""
        self._guesses: list[_Guesses] = []
        self._hold = acceptance(self.masks)
        return self.with_masks(EMPTY, self.masks)

    def propose(self, context: Tokens, budget: int) -> Draft:
        """The guesses and the masks behind them, at most ``budget`` rows."""
        return self.with_masks(self.guesses(), budget)

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """Read the logits of the masks behind the last accepted row."""
        self._count(len(accepted.path))
        self._guesses = []
        group = _group(draft, accepted.path[-1] if accepted.path else ROOT)
        if not group or logits is None:
            return
        tokens, chances = logits.top(group, min(max(self.widths), logits.vocabulary))
        for line, shares, width in zip(tokens.tolist(), chances.tolist(), self.widths, strict=False):
            self._guesses.append(list(zip(line, shares, strict=True))[:width])

    def guesses(self) -> Draft:
        """The tree of what the masks guessed, without probes."""
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
        return Draft.trusted(tuple(tokens), tuple(parents), tuple(chances))

    def with_masks(self, draft: Draft, budget: int) -> Draft:
        """The rows of a draft with masks behind them: of all these the ``budget`` that are worth most."""
        rows = [(-chance, row, 0) for row, chance in enumerate(draft.chances)]
        for row, end in _ends(draft).items():
            hold = accumulate(self._hold, min, initial=1.0)
            rows += [(-end * share, row, place) for place, share in enumerate(hold) if place]
        kept = sorted(rows, key=lambda each: (each[0], each[2], each[1]))[: max(budget, 0)]
        return _masked(draft, sorted((row, place, -minus) for minus, row, place in kept))

    def _count(self, held: int) -> None:
        """Learn how often guesses of each mask are accepted, now that ``held`` rows were."""
        for place in range(len(self._guesses)):
            self._hold[place] += ((held > place) - self._hold[place]) / MEMORY


def acceptance(masks: int) -> list[float]:
    """How often guesses of the first of so many masks, of the first two, and so on, are accepted, before any was."""
    return [*HOLD, *[HOLD[-1]] * masks][:masks]


def widths(k: int, shape: Shape, masks: int) -> list[int]:
    """How many guesses each mask makes."""
    if shape == "chain":
        return [1] * masks
    return [max(k - place, 1) if shape == "triangle" else k for place in range(masks)]


def _ends(draft: Draft) -> dict[int, float]:
    """For the root and every row, the chance that the accepted path ends there."""
    ends = {ROOT: 1.0, **dict(enumerate(draft.chances))}
    for parent, chance in zip(draft.parents, draft.chances, strict=True):
        ends[parent] -= chance
    return {row: max(end, LEAST * (1.0 if row == ROOT else draft.chances[row])) for row, end in ends.items()}


def _masked(draft: Draft, kept: list[tuple[int, int, float]]) -> Draft:
    """A draft of these rows (place 0) and of these masks behind rows (from place 1); ascending, with their chance."""
    rows = [row for row, place, _ in kept if place == 0]
    whole = select(draft, rows)
    places = {row: index for index, row in enumerate(rows)} | {ROOT: ROOT}
    tokens, parents, chances = list(whole.tokens), list(whole.parents), list(whole.chances)
    for row, place, worth in kept:
        if place:
            parents.append(places[row] if place == 1 else len(tokens) - 1)
            tokens.append(-place)
            chances.append(worth)
    return Draft.trusted(tuple(tokens), tuple(parents), tuple(chances), len(tokens) - len(rows))


def _group(draft: Draft, row: int) -> list[int]:
    """The masks behind a row, the first one first."""
    group: list[int] = []
    for probe in range(len(draft) - draft.probes, len(draft)):
        if draft.parents[probe] == row and draft.tokens[probe] == -1 - len(group):
            group.append(probe)
            row = probe
    return group
