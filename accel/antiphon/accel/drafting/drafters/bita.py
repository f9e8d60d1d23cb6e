"""BiTA: learned mask tokens guess what comes after the next token, behind every draft row (Lin et al. 2024).

Knows drafts, and what its masks said; the model is run, and what was learned is shown to it, elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, get_args

from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted, Draft, Tokens, select

if TYPE_CHECKING:
    from torch import Tensor

    from antiphon.accel.engines.torch.learned import Learned

Shape = Literal["triangle", "rectangle", "chain"]
"""How many guesses each mask makes: one fewer than the mask before it, as many, or one."""

WORTH = (0.4, 0.15, 0.06)
"""How often the guesses of the first mask, of the first two, and so on, hold: what is thought before any has."""

MEMORY = 16
"""About so many steps are remembered of that."""

LEAST = 0.05
"""With at least so much of a row's chance the text is thought to end there: the chances of its children add up to too
much."""

_Guesses = list[tuple[int, float]]


class Bita:
    """Drafts a tree from what the masks behind the last accepted row said, and puts masks behind every row of it.

    Level d of the tree are the best guesses of the d-th mask: ``k`` of the first, and by ``shape`` as many or fewer of
    the others. Only the best guess of a level has children, the guesses of the next. Behind every row, and behind the
    root, stands a group of masks that will guess on from there, whatever is accepted: one forward verifies this draft
    and makes the next. With m masks a full draft has 1 + m rows for every guess and m more, as in the paper (section
    3.3, "efficient tree-based decoding"). Under a smaller budget it is the rows worth most: guesses by their chance,
    masks by the chance that the text is accepted just so far, times how often guesses of that mask have held.

    What was learned belongs to one model, and is refused by any other.

    Raises:
        ValueError: ``k`` or ``shape`` is out of range.
    """

    def __init__(self, learned: Learned, k: int = 5, *, shape: Shape = "triangle") -> None:
        if k < 1:
            raise ValueError(f"k is {k}; a mask guesses at least 1 token.")
        if shape not in get_args(Shape):
            raise ValueError(f"shape is {shape!r}; choose one of {', '.join(get_args(Shape))}.")
        self.learned = learned
        self.masks = len(learned.masks)
        self.widths = widths(k, shape, self.masks)
        self.begin((), ())

    @property
    def rows(self) -> int:
        """The most rows of a draft: all guesses, and a group of masks behind each of them and behind the root."""
        return (1 + sum(self.widths)) * (1 + self.masks) - 1

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> Draft:
        """Forget the last request, and ask what comes after the prompt, which is the model's to read."""
        self._guesses: list[_Guesses] = []
        self._worth = worths(self.masks)
        return self.grouped(EMPTY, self.masks)

    def propose(self, context: Tokens, budget: int) -> Draft:
        """The guesses and the masks behind them, at most ``budget`` rows."""
        return self.grouped(self.guesses(), budget)

    def observe(self, draft: Draft, accepted: Accepted, logits: Tensor) -> None:
        """Read what the masks behind the last accepted row say."""
        self._count(len(accepted.path))
        self._guesses = []
        group = _group(draft, accepted.path[-1] if accepted.path else ROOT)
        if not group or len(logits) != 1 + len(draft):  # a replay has no logits
            return
        from antiphon.accel.engines.torch.best import best  # here, not above: drafters are named where no model is run

        tokens, chances = best(logits[[row + 1 for row in group]], min(max(self.widths), logits.shape[1]))
        for line, shares, width in zip(tokens.tolist(), chances.tolist(), self.widths, strict=False):
            self._guesses.append(list(zip(line, shares, strict=True))[:width])

    def guesses(self) -> Draft:
        """The tree of what the masks said, without masks of its own."""
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
        return Draft(tuple(tokens), tuple(parents), tuple(chances))

    def grouped(self, draft: Draft, budget: int) -> Draft:
        """The rows of a draft, and masks behind them: of all these the ``budget`` that are worth most."""
        rows = [(-chance, row, 0) for row, chance in enumerate(draft.chances)]
        for row, end in _ends(draft).items():
            worths = accumulate(self._worth, min, initial=1.0)
            rows += [(-end * worth, row, place) for place, worth in enumerate(worths) if place]
        kept = sorted(rows, key=lambda each: (each[0], each[2], each[1]))[: max(budget, 0)]
        return _grown(draft, sorted((row, place, -minus) for minus, row, place in kept))

    def _count(self, held: int) -> None:
        """Learn how often guesses of each mask hold."""
        for place in range(len(self._guesses)):
            self._worth[place] += ((held > place) - self._worth[place]) / MEMORY


def worths(masks: int) -> list[float]:
    """How often the guesses of the first of so many masks, of the first two, and so on, are thought to hold."""
    return [*WORTH, *[WORTH[-1]] * masks][:masks]


def widths(k: int, shape: Shape, masks: int) -> list[int]:
    """How many guesses each mask makes."""
    if shape == "chain":
        return [1] * masks
    return [max(k - place, 1) if shape == "triangle" else k for place in range(masks)]


def _ends(draft: Draft) -> dict[int, float]:
    """For the root and every row, the chance that the text is accepted down to it, and no further."""
    ends = {ROOT: 1.0, **dict(enumerate(draft.chances))}
    for parent, chance in zip(draft.parents, draft.chances, strict=True):
        ends[parent] -= chance
    return {row: max(end, LEAST * (1.0 if row == ROOT else draft.chances[row])) for row, end in ends.items()}


def _grown(draft: Draft, kept: list[tuple[int, int, float]]) -> Draft:
    """A draft of these rows (place 0) and of these masks behind rows (from place 1); ascending, with their worth."""
    rows = [row for row, place, _ in kept if place == 0]
    whole = select(draft, rows)
    places = {row: index for index, row in enumerate(rows)} | {ROOT: ROOT}
    tokens, parents, chances = list(whole.tokens), list(whole.parents), list(whole.chances)
    for row, place, worth in kept:
        if place:
            parents.append(places[row] if place == 1 else len(tokens) - 1)
            tokens.append(-place)
            chances.append(worth)
    return Draft(tuple(tokens), tuple(parents), tuple(chances), len(tokens) - len(rows))


def _group(draft: Draft, row: int) -> list[int]:
    """The masks behind a row, the first one first."""
    group: list[int] = []
    for probe in range(len(draft) - draft.probes, len(draft)):
        if draft.parents[probe] == row and draft.tokens[probe] == -1 - len(group):
            group.append(probe)
            row = probe
    return group
