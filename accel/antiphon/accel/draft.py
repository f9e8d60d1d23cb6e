"""The words of drafting: what is guessed, what was accepted, and who guesses. Knows nothing of models or of torch."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

Tokens = Sequence[int]

ROOT = -1
"""The last confirmed token: where every draft begins."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A guess at what comes next: rows that hang from the last confirmed token.

    Row ``i`` holds ``tokens[i]`` and follows row ``parents[i]`` (or ``ROOT``); parents come before their children.
    ``chances[i]`` is the drafter's estimate that the whole path down to row ``i`` is accepted.
    The last ``probes`` rows only ask the model something: their drafter reads them, nobody accepts them. A negative
    token of a probe is a mask token (see `antiphon.accel.learned`): -1 the first, -2 the second, and so on.

    Raises:
        ValueError: the three sequences differ in length, or a row stands before its parent.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    chances: tuple[float, ...] = ()
    probes: int = 0

    def __post_init__(self) -> None:
        if not len(self.tokens) == len(self.parents) == len(self.chances):
            raise ValueError(
                f"A draft has {len(self.tokens)} tokens, {len(self.parents)} parents and {len(self.chances)} chances; "
                "every row needs one of each."
            )
        for row, parent in enumerate(self.parents):
            if not ROOT <= parent < row:
                raise ValueError(f"Row {row} follows row {parent}; a parent is ROOT (-1) or a row before its child.")
        if not 0 <= self.probes <= len(self.tokens):
            raise ValueError(f"probes is {self.probes}; a draft of {len(self.tokens)} rows has 0 to that many.")

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def children(self) -> dict[int, dict[int, int]]:
        """The candidates after each row: ``children[row][token]`` is a row; of duplicate siblings the first counts."""
        children: dict[int, dict[int, int]] = {}
        for row in range(len(self.tokens) - self.probes):
            children.setdefault(self.parents[row], {}).setdefault(self.tokens[row], row)
        return children

    @property
    def depths(self) -> list[int]:
        """How far each row is from the root: 1 for its children."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return depths


EMPTY = Draft()
"""No guess: legal, and costs one plain step."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """What one forward made certain: the rows kept, and the tokens they spell plus the model's own next one.

    ``tokens`` has ``len(path) + 1`` entries and is never empty; its last entry is the bonus token.
    """

    path: tuple[int, ...]
    tokens: tuple[int, ...]


class Drafter(Protocol):
    """Whoever guesses. It sees confirmed tokens only; what it guesses never changes the text, only the speed."""

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> None:
        """Forget the last request and read this one's prompt and references (token ids, one sequence each)."""

    def propose(self, context: Tokens, budget: int) -> Draft:
        """Guess what follows ``context`` (prompt and everything emitted so far) with at most ``budget`` rows."""

    def observe(self, draft: Draft, accepted: Accepted, logits: Tensor) -> None:
        """Learn from a step. ``logits``, of shape (1 + rows, vocab), are the model's: row 0 is the root's."""


DrafterFactory = Callable[[], Drafter]
"""Makes a fresh drafter for each request: a drafter class, a ``partial`` of one, or any function of no arguments."""


def chain(tokens: Tokens, chances: Sequence[float] | None = None) -> Draft:
    """A draft without branches: each token follows the one before it."""
    rows = len(tokens)
    return Draft(tuple(tokens), tuple(range(-1, rows - 1)), tuple(chances or (1.0,) * rows))


def path_to(draft: Draft, row: int) -> list[int]:
    """The rows from the first below the root down to ``row``, which is the last; none for the root."""
    path: list[int] = []
    while row != ROOT:
        path.insert(0, row)
        row = draft.parents[row]
    return path


def trim(draft: Draft, rows: int, depth: int) -> Draft:
    """The likeliest ``rows`` rows no deeper than ``depth``, closed under parents; ties keep the earlier row.

    A child is never likelier than its parent, so taking rows by the smaller of both chances keeps paths whole.
    Probes are kept or dropped together: all of them when the whole draft fits, none otherwise.
    """
    depths = draft.depths
    if len(draft) <= rows and max(depths, default=0) <= depth:
        return draft
    ranks: list[tuple[float, int]] = []
    for row in range(len(draft) - draft.probes):
        parent = draft.parents[row]
        above = ranks[parent][0] if parent != ROOT else -1.0
        ranks.append((max(-draft.chances[row], above), row))
    kept = sorted(row for _, row in heapq.nsmallest(max(rows, 0), (r for r in ranks if depths[r[1]] <= depth)))
    return select(draft, kept)


def likeliest_chain(draft: Draft) -> Draft:
    """The path to verify where only a chain can be: from the root down, the likeliest child each time."""
    path: list[int] = []
    row = ROOT
    children = draft.children
    while row in children:
        row = max(children[row].values(), key=lambda child: (draft.chances[child], -child))
        path.append(row)
    return select(draft, path)


def merge(*drafts: Draft) -> Draft:
    """One tree of several drafts: equal paths become one row, with the highest chance that any of them gave it."""
    tokens: list[int] = []
    parents: list[int] = []
    chances: list[float] = []
    rows: dict[tuple[int, int], int] = {}
    for draft in drafts:
        if draft.probes:
            raise ValueError(f"A draft with {draft.probes} probes cannot be merged: their drafter reads them by row.")
        here = {ROOT: ROOT}
        for row, (token, parent, chance) in enumerate(zip(draft.tokens, draft.parents, draft.chances, strict=True)):
            key = (here[parent], token)
            if key not in rows:
                rows[key] = len(tokens)
                tokens.append(token)
                parents.append(here[parent])
                chances.append(chance)
            here[row] = rows[key]
            chances[rows[key]] = max(chances[rows[key]], chance)
    return Draft(tuple(tokens), tuple(parents), tuple(chances))


def padded(draft: Draft, token: int, pads: int) -> Draft:
    """The draft with so many rows more that nobody accepts or reads: they only make its forward larger."""
    return Draft(
        draft.tokens + (token,) * pads,
        draft.parents + (ROOT,) * pads,
        draft.chances + (0.0,) * pads,
        draft.probes + pads,
    )


def select(draft: Draft, kept: Sequence[int]) -> Draft:
    """Only these rows, ascending; with a row its parent has to be kept."""
    place = {row: index for index, row in enumerate(kept)} | {ROOT: ROOT}
    return Draft(
        tuple(draft.tokens[row] for row in kept),
        tuple(place[draft.parents[row]] for row in kept),
        tuple(draft.chances[row] for row in kept),
    )
