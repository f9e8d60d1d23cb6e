"""The words of drafting: what is guessed, what was accepted, and who guesses. Knows nothing of models or of torch."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

Tokens = Sequence[int]

ROOT = -1
"""The last confirmed token: where every draft begins."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A guess at what comes next: rows that hang from the last confirmed token.

    Row ``i`` holds ``tokens[i]`` and follows row ``parents[i]`` (or ``ROOT``); parents come before their children.
    ``chances[i]`` is the drafter's estimate that the whole path down to row ``i`` is accepted.

    The last ``probes`` rows are probes, the rows before them candidates. A probe is a row that is fed because its
    drafter wants the model's logits there, not because its token is thought likely; after the forward the drafter
    finds it again by the tokens on its path. Its parent is the root, a candidate or another probe. If a probe holds a
    token (0 or more), it is verified like any row and accepted where it is right; if it holds a negative number, it
    is a mask token of BiTA, and no model says that. The chance of a probe is what its logits are worth, in tokens.

    Whoever makes a draft smaller keeps all probes below the root and below the candidates that are kept, or no probe.

    Raises:
        ValueError: the three sequences differ in length, or a row stands before its parent.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    chances: tuple[float, ...] = ()
    probes: int = 0
    _depths: list[int] | None = field(default=None, init=False, repr=False, compare=False)
    _children: dict[int, dict[int, int]] | None = field(default=None, init=False, repr=False, compare=False)

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

    @classmethod
    def trusted(
        cls, tokens: tuple[int, ...], parents: tuple[int, ...], chances: tuple[float, ...], probes: int = 0
    ) -> Draft:
        """The same draft without any check: for callers whose rows are right by construction."""
        draft = object.__new__(cls)
        fill = object.__setattr__  # the class is frozen
        fill(draft, "tokens", tokens)
        fill(draft, "parents", parents)
        fill(draft, "chances", chances)
        fill(draft, "probes", probes)
        fill(draft, "_depths", None)
        fill(draft, "_children", None)
        return draft

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def children(self) -> dict[int, dict[int, int]]:
        """The rows after each row: ``children[row][token]`` is a row. Computed once; not to be changed.

        Rows with equal paths are the same row twice: the first one has the children of all of them.
        """
        if self._children is None:
            children: dict[int, dict[int, int]] = {}
            first = {ROOT: ROOT}
            for row, (token, parent) in enumerate(zip(self.tokens, self.parents, strict=True)):
                first[row] = children.setdefault(first[parent], {}).setdefault(token, row)
            object.__setattr__(self, "_children", children)
        return self._children or {}

    @property
    def candidates(self) -> int:
        """How many rows are no probes."""
        return len(self.tokens) - self.probes

    @property
    def probes_below(self) -> dict[int, list[int]]:
        """The probes below the root and below each candidate, whatever other probes are between; ascending."""
        below: dict[int, list[int]] = {}
        above = {row: row for row in range(ROOT, self.candidates)}
        for row in range(self.candidates, len(self.tokens)):
            above[row] = above[self.parents[row]]
            below.setdefault(above[row], []).append(row)
        return below

    @property
    def depths(self) -> list[int]:
        """How far each row is from the root: 1 for its children. Computed once; not to be changed."""
        if self._depths is None:
            depths: list[int] = []
            for parent in self.parents:
                depths.append(1 if parent == ROOT else depths[parent] + 1)
            object.__setattr__(self, "_depths", depths)
        return self._depths or []


EMPTY = Draft()
"""No guess: legal, and costs one plain step."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """What one forward made certain: the rows kept, and the tokens they spell plus the model's own next one.

    ``tokens`` has ``len(path) + 1`` entries and is never empty; its last entry is the bonus token.
    """

    path: tuple[int, ...]
    tokens: tuple[int, ...]


class Logits(Protocol):
    """What the model says after the root and after every row of one draft; rows are numbered as in the draft."""

    def __len__(self) -> int:
        """One more than the draft has rows."""

    @property
    def vocabulary(self) -> int:
        """How many tokens the model knows: the size of a row."""

    def best(self, row: int) -> int:
        """The likeliest token after this row (``ROOT``: after the last confirmed token), of equal ones the first."""

    def top(self, rows: Sequence[int], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The ``k`` likeliest tokens after each of these rows, best first, and about their probabilities.

        Both have shape (rows, k); ``k`` is at most ``vocabulary``.
        """

    def head(self, rows: int) -> Logits:
        """The same without the rows behind the first ``rows`` of the draft."""

    def tensor(self) -> Tensor:
        """All of them as a tensor of shape (1 + rows, vocab), the root's first: for processors and for sampling."""


class Drafter(Protocol):
    """Whoever guesses. It sees confirmed tokens only; what it guesses never changes the text, only the speed."""

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> Draft | None:
        """Forget the last request and read this one's prompt and references (token ids, one sequence each).

        A draft that is returned is verified in the first forward, beside the prompt's last token: for drafters that
        want logits there. It is not guaranteed: some models and batches read their prompts alone.
        """

    def propose(self, context: Tokens, budget: int) -> Draft:
        """Guess what follows ``context`` (prompt and everything emitted so far).

        At most ``budget`` rows are candidates; whether probes pay is decided afterwards, by the budget.
        """

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """Learn from a step. ``logits`` are the model's, or None where nobody has them (a replay of a known text).

        The draft may have fewer rows than were proposed, and in another order: paths tell which they are.
        """


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


def without_probes(draft: Draft) -> Draft:
    """The candidates alone."""
    if not draft.probes:
        return draft
    count = draft.candidates
    return Draft.trusted(draft.tokens[:count], draft.parents[:count], draft.chances[:count])


def trim(draft: Draft, rows: int, depth: int, probe_depth: int | None = None) -> Draft:
    """The likeliest ``rows`` rows no deeper than ``depth``, closed under parents; ties keep the earlier row.

    A child is never likelier than its parent, so taking rows by the smaller of both chances keeps paths whole.
    Probes go first: those of the root are taken before any candidate, and each candidate is taken with those below
    it. All probes are dropped where those of the root do not fit, or where one of them is deeper than ``probe_depth``
    (by default ``depth``; it may be larger, for a probe's logits are of use even where no row may be accepted).
    """
    depths = draft.depths
    if len(draft) <= rows and max(depths, default=0) <= depth:
        return draft
    if draft.probes:
        kept = _with_probes(draft, rows, depth, depth if probe_depth is None else probe_depth)
        return trim(without_probes(draft), rows, depth) if kept is None else select(draft, kept)
    return select(draft, sorted(_likeliest(draft, max(rows, 0), depth)))


def _likeliest(draft: Draft, rows: int, depth: int) -> list[int]:
    """So many candidates no deeper than ``depth``, the likeliest first and parents before their children."""
    depths = draft.depths
    ranks: list[tuple[float, int]] = []
    for row in range(draft.candidates):
        parent = draft.parents[row]
        above = ranks[parent][0] if parent != ROOT else -1.0
        ranks.append((max(-draft.chances[row], above), row))
    return [row for _, row in heapq.nsmallest(rows, (rank for rank in ranks if depths[rank[1]] <= depth))]


def _with_probes(draft: Draft, rows: int, depth: int, probe_depth: int) -> list[int] | None:
    """The rows that `trim` keeps of a draft with probes, ascending; None where the probes have to go."""
    probes, depths = draft.probes_below, draft.depths
    kept = list(probes.get(ROOT, ()))
    for row in _likeliest(draft, rows, depth):
        if len(kept) + 1 + len(probes.get(row, ())) > rows:
            break
        kept += [row, *probes.get(row, ())]
    fits = len(kept) <= rows and all(depths[row] <= probe_depth for row in kept)
    return sorted(kept) if fits else None


def likeliest_chain(draft: Draft) -> Draft:
    """The path to verify where only a chain can be: from the root down, the likeliest candidate each time."""
    path: list[int] = []
    row = ROOT
    children = without_probes(draft).children
    while row in children:
        row = max(children[row].values(), key=lambda child: (draft.chances[child], -child))
        path.append(row)
    tokens, chances = (tuple([values[row] for row in path]) for values in (draft.tokens, draft.chances))
    return Draft.trusted(tokens, tuple(range(-1, len(path) - 1)), chances)  # type: ignore[arg-type]


def merge(*drafts: Draft) -> Draft:
    """One tree of several drafts: equal paths become one row, with the highest chance that any of them gave it.

    The probes of all of them follow the candidates of all of them. A probe whose path a candidate has, too, is a row
    of its own: else dropping the one would drop the other.
    """
    tokens: list[int] = []
    parents: list[int] = []
    chances: list[float] = []
    places: list[dict[int, int]] = [{ROOT: ROOT} for _ in drafts]

    def add(rows: Sequence[range]) -> None:
        known: dict[tuple[int, int], int] = {}
        for draft, here, own in zip(drafts, places, rows, strict=True):
            for row in own:
                key = (here[draft.parents[row]], draft.tokens[row])
                if key not in known:
                    known[key] = len(tokens)
                    tokens.append(draft.tokens[row])
                    parents.append(key[0])
                    chances.append(draft.chances[row])
                here[row] = known[key]
                chances[known[key]] = max(chances[known[key]], draft.chances[row])

    add([range(draft.candidates) for draft in drafts])
    candidates = len(tokens)
    add([range(draft.candidates, len(draft)) for draft in drafts])
    return Draft.trusted(tuple(tokens), tuple(parents), tuple(chances), len(tokens) - candidates)


def padded(draft: Draft, token: int, pads: int) -> Draft:
    """The draft with so many rows more that nobody accepts or reads: they only make its forward larger."""
    return Draft.trusted(
        draft.tokens + (token,) * pads,
        draft.parents + (ROOT,) * pads,
        draft.chances + (0.0,) * pads,
        draft.probes + pads,
    )


def select(draft: Draft, kept: Sequence[int]) -> Draft:
    """Only these rows, in this order; with a row its parent has to be kept, and to stand before it."""
    place = {row: index for index, row in enumerate(kept)}
    place[ROOT] = ROOT
    tokens, parents, chances, candidates = draft.tokens, draft.parents, draft.chances, draft.candidates
    return Draft.trusted(
        tuple([tokens[row] for row in kept]),
        tuple([place[parents[row]] for row in kept]),
        tuple([chances[row] for row in kept]),
        sum([row >= candidates for row in kept]) if draft.probes else 0,
    )
