"""Calibration: correct a drafter's estimated probabilities by its observed acceptance rates."""

from __future__ import annotations

from bisect import bisect
from collections import deque
from dataclasses import dataclass

from antiphon.accel.drafting.draft import ROOT, Draft, Tokens, without_probes

BIN_EDGES = (0.002, 0.005, 0.012, 0.03, 0.06, 0.12, 0.22, 0.38, 0.56, 0.73, 0.88)
"""Edges of the bins of probabilities, evenly spaced in log odds."""

NUM_BINS = 2 * (len(BIN_EDGES) + 1)
"""Number of bins. Rows directly below the root and deeper rows have separate bins for each range of probabilities."""

PRIOR_TRIALS = 4.0
"""Weight of the prior: the drafter's own probability counts as this many trials of its bin."""

MEMORY = 1000.0
"""About this many trials of a bin are remembered; older ones decay."""

REQUEST_PRIOR_TRIALS = 8.0
REQUEST_MEMORY = 30.0
"""The same two numbers for one request's calibration; its prior is the shared `Calibration`."""

MAX_PENDING = 8
"""Number of drafts that are kept until further tokens show whether their deeper rows were right."""


class Calibration:
    """Acceptance rates of a drafter's rows, grouped by estimated probability (bins).

    Only rows whose parents were right are counted.

    All requests share one calibration. A row is right if the later text has the row's token at the
    row's position. This is known even for rows that were not verified, so these rows are counted,
    too.

    Args:
        memory: Number of trials that a bin remembers; the weight of older trials decays.
        prior_trials: Weight of a row's given probability: it counts as much as this number of
            trials in the row's bin.

    Attributes:
        trials: Decayed number of rows per bin, length ``NUM_BINS``.
        hits: Decayed number of right rows per bin.
    """

    def __init__(self, memory: float = MEMORY, prior_trials: float = PRIOR_TRIALS) -> None:
        self._decay, self._prior_trials = 1 - 1 / memory, prior_trials
        self.trials = [0.0] * NUM_BINS
        self.hits = [0.0] * NUM_BINS

    def chance(self, index: int, given: float) -> float:
        """Return the probability that a row is right if its parent is right.

        Args:
            index: Bin of the row.
            given: Probability that the drafter gave the row.
        """
        return (self.hits[index] + self._prior_trials * given) / (self.trials[index] + self._prior_trials)

    def record(self, index: int, is_hit: bool) -> None:
        """Count one row.

        Args:
            index: Bin of the row.
        """
        self.trials[index] = self.trials[index] * self._decay + 1
        self.hits[index] = self.hits[index] * self._decay + is_hit


@dataclass(slots=True)
class _PendingDraft:
    """An earlier draft, and the row that the emitted tokens have reached."""

    draft: Draft
    bins: list[int]
    children: dict[int, dict[int, int]]
    row: int = ROOT


class RequestCalibration:
    """The calibration of one request: a shared prior, updated with the request's own observations.

    Args:
        prior: The calibration from earlier requests; this request's observations update it, too.
    """

    def __init__(self, prior: Calibration) -> None:
        self.prior, self.own = prior, Calibration(REQUEST_MEMORY, REQUEST_PRIOR_TRIALS)
        self._pending: deque[_PendingDraft] = deque(maxlen=MAX_PENDING)

    def chance(self, is_first: bool, given: float) -> tuple[int, float]:
        """Return the bin of a row, and the probability that the row is right if its parent is right.

        Args:
            is_first: Whether the row is directly below the root.
            given: Probability that the drafter gave the row.
        """
        index = 2 * bisect(BIN_EDGES, given) + (not is_first)
        return index, self.own.chance(index, self.prior.chance(index, given))

    def calibrate(self, draft: Draft) -> list[float]:
        """Return, for each candidate, the calibrated probability that the path to it is accepted.

        A candidate's probability is at most its parent's. The draft is stored until later tokens
        show which of its rows were right. The draft is stored once, even if it is calibrated
        several times before the next tokens.
        """
        draft = without_probes(draft)
        chances: list[float] = []
        bins: list[int] = []
        for parent, chance in zip(draft.parents, draft.chances, strict=True):
            above = 1.0 if parent == ROOT else draft.chances[parent]
            given = min(chance / above, 1.0) if above > 0 else 0.0
            index, own = self.chance(parent == ROOT, given)
            chances.append(own if parent == ROOT else own * chances[parent])
            bins.append(index)
        is_pending = bool(self._pending) and self._pending[-1].row == ROOT and self._pending[-1].draft == draft
        if draft.tokens and not is_pending:
            self._pending.append(_PendingDraft(draft, bins, draft.children))
        return chances

    def observe(self, tokens: Tokens) -> None:
        """Update the calibration with the emitted tokens."""
        self._pending = deque((each for each in self._pending if self._follow(each, tokens)), maxlen=MAX_PENDING)

    def _follow(self, each: _PendingDraft, tokens: Tokens) -> bool:
        """Count the rows that the tokens prove right or wrong; return whether other rows are still undecided."""
        for token in tokens:
            candidates = each.children.get(each.row, {})
            for row in candidates.values():
                is_hit = each.draft.tokens[row] == token
                for counts in (self.prior, self.own):
                    counts.record(each.bins[row], is_hit)
            if token not in candidates:
                return False
            each.row = candidates[token]
        return each.row in each.children
