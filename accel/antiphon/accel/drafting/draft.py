"""Drafts and related types: `Draft`, `Accepted`, and the protocols `Drafter` and `Logits`."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

Tokens = Sequence[int]

ROOT = -1
"""The parent of a draft's first rows: the last confirmed token."""


@dataclass(frozen=True)
class Draft:
    """A draft tree: rows of guessed tokens below the last confirmed token (``ROOT``).

    A row is a candidate or a probe. A candidate is a guess at the text. A probe is a row whose logits the drafter
    needs; after the forward pass the drafter finds the probe by the tokens on its path. A probe
    with a token (0 or more) is accepted like any row if the token is right. A probe with a negative
    number is a mask token of BiTA and is never accepted.

    Functions that remove rows keep either no probes, or all probes below the root and below each kept candidate.

    Attributes:
        tokens: Token of each row.
        parents: Parent of each row: an earlier row, or ``ROOT``.
        chances: For a candidate, the estimated probability that the whole path down to it is
            accepted. For a probe, the number of later tokens that its logits are expected to yield.
        num_probes: Number of probes. They are the last rows; the candidates come before them.

    Raises:
        ValueError: The three sequences differ in length, a row comes before its parent, or ``num_probes`` is out of
            range.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    chances: tuple[float, ...] = ()
    num_probes: int = 0

    def __post_init__(self) -> None:
        if not len(self.tokens) == len(self.parents) == len(self.chances):
            raise ValueError(
                f"A draft has {len(self.tokens)} tokens, {len(self.parents)} parents and {len(self.chances)} chances; "
                "every row needs one of each."
            )
        for row, parent in enumerate(self.parents):
            if not ROOT <= parent < row:
                raise ValueError(f"Row {row} has parent {parent}; give ROOT (-1) or an earlier row.")
        if not 0 <= self.num_probes <= len(self.tokens):
            raise ValueError(f"num_probes is {self.num_probes}; give 0 to {len(self.tokens)}, the number of rows.")

    @classmethod
    def unchecked(
        cls, tokens: tuple[int, ...], parents: tuple[int, ...], chances: tuple[float, ...], num_probes: int = 0
    ) -> Draft:
        """Return a draft without validating it, for callers whose rows are valid by construction."""
        draft = object.__new__(cls)
        vars(draft).update(tokens=tokens, parents=parents, chances=chances, num_probes=num_probes)
        return draft

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def children(self) -> dict[int, dict[int, int]]:
        """Child rows of each row: ``children[row][token]`` is a row. Computed once; do not modify.

        If several rows have equal paths, the first of them lists the children of all.
        """
        children: dict[int, dict[int, int]] = {}
        first = {ROOT: ROOT}
        for row, (token, parent) in enumerate(zip(self.tokens, self.parents, strict=True)):
            first[row] = children.setdefault(first[parent], {}).setdefault(token, row)
        return children

    @property
    def num_candidates(self) -> int:
        """Number of rows that are not probes."""
        return len(self.tokens) - self.num_probes

    @cached_property
    def probes_below(self) -> dict[int, list[int]]:
        """For the root and each candidate, the probes below it, ascending. Do not modify the lists.

        A probe belongs to its nearest ancestor that is not a probe.
        """
        below: dict[int, list[int]] = {}
        above = {row: row for row in range(ROOT, self.num_candidates)}
        for row in range(self.num_candidates, len(self.tokens)):
            above[row] = above[self.parents[row]]
            below.setdefault(above[row], []).append(row)
        return below

    @cached_property
    def depths(self) -> list[int]:
        """Depth of each row; children of the root have depth 1. Computed once; do not modify."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return depths


EMPTY = Draft()
"""The empty draft, which any engine can verify; its step is a plain step."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The result of verifying one draft.

    Attributes:
        path: The accepted rows, beginning directly below the root.
        tokens: The emitted tokens: the accepted rows, then the bonus token (the model's own next
            token); ``len(path) + 1`` tokens.
    """

    path: tuple[int, ...]
    tokens: tuple[int, ...]


def places_of(rows: Sequence[int], first: int = 0) -> slice | list[int]:
    """Return the indices of rows in an array of logits, where the root has index ``first``; a slice if possible."""
    if isinstance(rows, range) and rows.step == 1:
        return slice(first + rows.start + 1, first + rows.stop + 1)
    return [first + row + 1 for row in rows]


class Logits(Protocol):
    """The model's logits after the root and after every row of one draft; rows are numbered as in the draft."""

    def __len__(self) -> int:
        """Return the number of draft rows plus 1, for the root."""

    @property
    def vocab_size(self) -> int:
        """Number of logits per row."""

    def argmax(self, row: int) -> int:
        """Return the most likely token after a row (``ROOT``: the last confirmed token); the lowest id in a tie."""

    def top_k(self, rows: Sequence[int], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the ``k`` most likely tokens after each row and their approximate probabilities, best first.

        Args:
            rows: Rows of the draft, or ``ROOT``.
            k: Number of tokens per row, at most ``vocab_size``.

        Returns:
            Tokens and probabilities, each of shape (rows, k).
        """

    def head(self, rows: int) -> Logits:
        """Return the logits after the root and the first ``rows`` rows."""

    def tensor(self) -> Tensor:
        """Return all logits, the root's first, shape (1 + rows, vocabulary), for processors and sampling."""


class Drafter(Protocol):
    """Proposes drafts from confirmed tokens. Drafts change the speed, never the text."""

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> Draft | None:
        """Forget the previous request, and read the prompt and the references of a new request.

        Args:
            references: Token ids of the texts to copy from, one sequence each.

        Returns:
            A draft below the last token of the prompt, or None. It is meant for drafters that need
            logits of the first forward pass. The engine may ignore it: some models and batches
            cannot draft during prefill.
        """

    def propose(self, context: Tokens, budget: int) -> Draft:
        """Return a draft of the tokens that may follow the context.

        Args:
            context: Token ids of the prompt and of everything emitted so far.
            budget: Maximum number of candidates. Probes are not counted, because the budget decides about them later.
        """

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """Update the drafter with the result of one step.

        Args:
            draft: The draft that was verified. It may have fewer rows than proposed, in another order; identify rows
                by their paths.
            logits: The model's logits; None when a recorded answer is replayed.
        """


def common_length(before: Tokens, after: Tokens) -> int:
    """Return the number of first tokens that two texts have in common."""
    pairs = zip(before, after, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(before), len(after)))


DrafterFactory = Callable[[], Drafter]
"""Returns a new drafter for each request: a drafter class, a ``partial`` of one, or a function without parameters."""


def chain(tokens: Tokens, chances: Sequence[float] | None = None) -> Draft:
    """Return a draft without branches: each token follows the previous one.

    Args:
        chances: Chance of each row; 1.0 by default.
    """
    rows = len(tokens)
    return Draft(tuple(tokens), tuple(range(-1, rows - 1)), tuple(chances or (1.0,) * rows))


def path_to(draft: Draft, row: int) -> list[int]:
    """Return the rows on the path from the root, exclusive, to ``row``, inclusive.

    Args:
        row: The last row of the path, or ``ROOT``.
    """
    path: list[int] = []
    while row != ROOT:
        path.insert(0, row)
        row = draft.parents[row]
    return path


def without_probes(draft: Draft) -> Draft:
    """Return the draft without its probes."""
    if not draft.num_probes:
        return draft
    count = draft.num_candidates
    return Draft.unchecked(draft.tokens[:count], draft.parents[:count], draft.chances[:count])


def trim(draft: Draft, rows: int, depth: int, probe_depth: int | None = None) -> Draft:
    """Trim a draft to its ``rows`` most likely rows down to ``depth``, with all their ancestors.

    Rows are ranked by their chance, but never above their parent, so paths stay complete. If ranks are equal, the
    earlier row is kept.

    The probes below the root are taken before any candidate, and each candidate is taken with the probes below it. If
    the probes of the root do not fit, or a probe is too deep, all probes are dropped.

    Args:
        probe_depth: Maximum depth of a probe, ``depth`` by default. It may be larger, because the logits of a probe
            are useful even if the probe cannot be accepted.
    """
    depths = draft.depths
    if len(draft) <= rows and max(depths, default=0) <= depth:
        return draft
    if draft.num_probes:
        kept = _trim_with_probes(draft, rows, depth, depth if probe_depth is None else probe_depth)
        return trim(without_probes(draft), rows, depth) if kept is None else take_rows(draft, kept)
    return take_rows(draft, sorted(_most_likely(draft, max(rows, 0), depth)))


def _most_likely(draft: Draft, rows: int, depth: int) -> list[int]:
    """Return the ``rows`` most likely candidates down to ``depth``, most likely first, parents before children."""
    depths = draft.depths
    ranks: list[tuple[float, int]] = []
    for row in range(draft.num_candidates):
        parent = draft.parents[row]
        above = ranks[parent][0] if parent != ROOT else -1.0
        ranks.append((max(-draft.chances[row], above), row))
    return [row for _, row in heapq.nsmallest(rows, (rank for rank in ranks if depths[rank[1]] <= depth))]


def _trim_with_probes(draft: Draft, rows: int, depth: int, probe_depth: int) -> list[int] | None:
    """Return, ascending, the rows that `trim` keeps of a draft with probes; None if the probes do not fit."""
    probes, depths = draft.probes_below, draft.depths
    kept = list(probes.get(ROOT, ()))
    for row in _most_likely(draft, rows, depth):
        if len(kept) + 1 + len(probes.get(row, ())) > rows:
            break
        kept += [row, *probes.get(row, ())]
    fits = len(kept) <= rows and all(depths[row] <= probe_depth for row in kept)
    return sorted(kept) if fits else None


def most_likely_chain(draft: Draft) -> Draft:
    """Return the chain of most likely children from the root on, for models that can verify only chains."""
    path: list[int] = []
    row = ROOT
    children = without_probes(draft).children
    while row in children:
        row = max(children[row].values(), key=lambda child: (draft.chances[child], -child))
        path.append(row)
    tokens, chances = (tuple([values[row] for row in path]) for values in (draft.tokens, draft.chances))
    return Draft.unchecked(tokens, tuple(range(-1, len(path) - 1)), chances)  # type: ignore[arg-type]


def merge(*drafts: Draft) -> Draft:
    """Merge drafts into one tree. Equal paths become one row with the highest of their chances.

    The probes of all drafts follow the candidates of all drafts. A probe with the same path as a candidate stays a
    separate row: otherwise dropping the candidate would drop the probe.
    """
    tokens: list[int] = []
    parents: list[int] = []
    chances: list[float] = []
    merged_rows: list[dict[int, int]] = [{ROOT: ROOT} for _ in drafts]

    def add(rows: Sequence[range]) -> None:
        known: dict[tuple[int, int], int] = {}
        for draft, merged, own in zip(drafts, merged_rows, rows, strict=True):
            for row in own:
                key = (merged[draft.parents[row]], draft.tokens[row])
                if key not in known:
                    known[key] = len(tokens)
                    tokens.append(draft.tokens[row])
                    parents.append(key[0])
                    chances.append(draft.chances[row])
                merged[row] = known[key]
                chances[known[key]] = max(chances[known[key]], draft.chances[row])

    add([range(draft.num_candidates) for draft in drafts])
    candidates = len(tokens)
    add([range(draft.num_candidates, len(draft)) for draft in drafts])
    return Draft.unchecked(tuple(tokens), tuple(parents), tuple(chances), len(tokens) - candidates)


def pad(draft: Draft, token: int, count: int) -> Draft:
    """Add padding rows, which only increase the size of the forward pass.

    Args:
        count: Number of padding rows. They are probes of the root with chance 0.
    """
    return Draft.unchecked(
        draft.tokens + (token,) * count,
        draft.parents + (ROOT,) * count,
        draft.chances + (0.0,) * count,
        draft.num_probes + count,
    )


def take_rows(draft: Draft, kept: Sequence[int]) -> Draft:
    """Return only the kept rows, in the given order.

    Args:
        kept: Rows to keep; the parent of each kept row comes before it.
    """
    place = {row: index for index, row in enumerate(kept)}
    place[ROOT] = ROOT
    tokens, parents, chances, candidates = draft.tokens, draft.parents, draft.chances, draft.num_candidates
    return Draft.unchecked(
        tuple([tokens[row] for row in kept]),
        tuple([place[parents[row]] for row in kept]),
        tuple([chances[row] for row in kept]),
        sum([row >= candidates for row in kept]) if draft.num_probes else 0,
    )
