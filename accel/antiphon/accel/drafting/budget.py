"""Limit the rows of a draft to a fixed number, or by measured costs and acceptance rates.

A budget never changes the text, only the time. `antiphon.accel.drafting.row_selection` chooses the rows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from antiphon.accel.drafting.calibration import Calibration, RequestCalibration
from antiphon.accel.drafting.cost_model import CostModel, StepCost
from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted, Draft, Drafter, Tokens, take_rows, trim
from antiphon.accel.drafting.row_selection import ScoredDraft, select_rows
from antiphon.accel.drafting.tree import reorder_depth_first, take_rows_depth_first

STEP_WEIGHT = 1 / 32
"""Weight of one step in the moving average over all steps."""

SWITCH_GAIN = 1.04
"""Another number of rows is only preferred if it gives this many times the tokens per second,
because the average fluctuates by a few percent.
"""


class PreferredRows:
    """The number of rows, including the root, that gives the most tokens per second if every step has this number.

    For a single step, more or fewer rows may be better. But if a change of the number of rows makes a forward pass
    much more expensive, a constant number is fastest. Before the first step, the number is computed from the chances
    of the first draft. Later it is computed from the drafted tokens that the text turned out to contain, even if
    their rows were not verified. Requests with the same kind of drafter share the number.

    Attributes:
        rows: The preferred number; 0 before the first `update`.
    """

    def __init__(self, max_rows: int) -> None:
        self.rows = 0
        self._gains: NDArray[np.float64] = np.zeros(max_rows + 1)
        self._steps = 0

    def update(self, seconds: Mapping[int, float], chances: Sequence[float]) -> None:
        """Choose the number of rows with the most tokens per second.

        Args:
            chances: Chances of the current draft's candidates, used before the first step has been observed.
        """
        if not self._steps:
            self._record(np.sort(chances)[::-1].cumsum())
        rates = {rows: (1 + self._gains[rows - 1]) / spent for rows, spent in seconds.items()}
        best = max(rates, key=rates.__getitem__)
        if rates[best] > SWITCH_GAIN * rates.get(self.rows, 0.0):
            self.rows = best

    def observe(self, draft: Draft, chances: Sequence[float], tokens: Tokens) -> None:
        """Record how many candidates of a draft would have been accepted if all had been verified."""
        order = sorted(range(len(chances)), key=chances.__getitem__, reverse=True)
        places = {row: place for place, row in enumerate(order, 1)}
        found: list[int] = []
        row = ROOT
        for token in tokens:
            row = draft.children.get(row, {}).get(token, len(draft))
            if row not in places:
                break
            found.append(places[row])
        self._record(np.bincount(np.array(found, dtype=int), minlength=len(self._gains))[1:].cumsum())

    def _record(self, gains: NDArray[np.float64] | NDArray[np.int64]) -> None:
        """Update the moving averages of the tokens gained with 1, 2, ... candidates.

        If ``gains`` is shorter than the averages, further candidates gain no further tokens.
        """
        share = max(STEP_WEIGHT, 1 / (self._steps + 1))
        self._gains *= 1 - share
        count = min(len(gains), len(self._gains) - 1)
        if count:
            self._gains[1 : count + 1] += share * gains[:count]
            self._gains[count + 1 :] += share * gains[count - 1]
        self._steps += 1


MAX_ROWS = 63
"""Maximum number of rows of a draft: with the root, this is the largest forward pass whose cost is measured."""

INITIAL_ROWS, MIN_ROWS = 32, 8
"""Initial and minimum number of rows to request from a drafter."""

EXPLORE_EVERY = 4
"""Once in this number of steps, more candidates than the preferred number are requested, to measure their gain."""

PADDING_GAIN = 0.9
"""Padding rows must cut a pass's cost to below this share, because smaller gains may be noise."""


class Budget(Protocol):
    """Decides which rows of a draft are verified. Each request has its own."""

    @property
    def num_draft_tokens(self) -> int:
        """Number of candidates to request from the drafter."""

    def trim(self, draft: Draft, context_length: int) -> Draft:
        """Return the rows to verify in a forward pass for this sequence alone."""

    def padding_rows(self, draft: Draft, context_length: int) -> int:
        """Return the number of padding rows that make a forward pass for this sequence alone cheaper."""

    def observe_accepted(self, accepted: Accepted) -> None:
        """Update the statistics with the tokens that a step emitted."""

    def observe_time(self, rows: int, context_length: int, seconds: float) -> None:
        """Update the costs with the duration of a step.

        Args:
            seconds: Duration of the step, including verification.
        """


@dataclass(frozen=True, slots=True)
class FixedBudget:
    """A `Budget` that verifies the same number of rows in every step.

    Attributes:
        num_draft_tokens: Maximum number of rows.
    """

    num_draft_tokens: int

    def trim(self, draft: Draft, context_length: int) -> Draft:
        """Return the most likely ``num_draft_tokens`` rows."""
        return draft if len(draft) <= self.num_draft_tokens else trim(draft, self.num_draft_tokens, sys.maxsize)

    def padding_rows(self, draft: Draft, context_length: int) -> int:
        """Return 0."""
        return 0

    def observe_accepted(self, accepted: Accepted) -> None:
        """Ignore the observation."""

    def observe_time(self, rows: int, context_length: int, seconds: float) -> None:
        """Ignore the observation."""


class AdaptiveBudget:
    """A `Budget` that verifies the rows that maximize the expected tokens per second.

    It verifies no row if a plain step has more tokens per second. Rows are sorted by calibrated
    chance. A step with the first k rows is expected to emit 1 + (sum of their chances) tokens, and
    its forward pass has 1 + k rows. Every k is tried, because costs rise in jumps.

    Args:
        calibration: Acceptance rates of the drafter in earlier requests.
        preferred: Preferred number of rows, which requests can share. None: this request learns its
            own.
    """

    def __init__(self, cost: CostModel, calibration: Calibration, preferred: PreferredRows | None = None) -> None:
        self.cost = cost
        self.calibration = RequestCalibration(calibration)
        self.preferred = preferred or PreferredRows(MAX_ROWS)
        self._num_draft_tokens = INITIAL_ROWS
        self._steps = 0
        self._is_alone = True
        self._last_scored: ScoredDraft | None = None

    @property
    def num_draft_tokens(self) -> int:
        """Number of candidates to request from the drafter: about twice the rows selected recently.

        If a number of rows is preferred, a draft of that size is requested instead, except after a
        shared step and in every `EXPLORE_EVERY`-th step.
        """
        is_preferred = self.preferred.rows and self._is_alone and self._steps % EXPLORE_EVERY
        return max(self.preferred.rows - 1, MIN_ROWS) if is_preferred else self._num_draft_tokens

    def trim(self, draft: Draft, context_length: int) -> Draft:
        """Return the rows that maximize the expected tokens per second.

        Either all of these rows keep their probes, or none does. The gain of a probe is its entry
        in `Draft.chances`: the expected number of later tokens from its logits.
        """
        kept = self.select(draft, context_length)
        return draft if len(kept) == len(draft) else take_rows(draft, kept)

    def select(self, draft: Draft, context_length: int) -> list[int]:
        """Return the rows that `trim` keeps, ascending."""
        scored = self.score(draft)
        if self.cost.shape_change and self._steps % EXPLORE_EVERY == 0:
            self._last_scored = scored
            seconds = self.cost.seconds(context_length, 1 + MAX_ROWS)
            self.preferred.update({rows: seconds[rows - 1] for rows in self.cost.row_counts}, scored.chances)
        costs = _padded_costs(self.cost, context_length, max(1 + len(draft), MIN_ROWS), self.preferred.rows)
        [kept] = select_rows([scored], costs, 1.0)
        self.adapt(max(len(kept), self.preferred.rows))
        self._is_alone = True
        return kept

    def score(self, draft: Draft) -> ScoredDraft:
        """Return the draft with calibrated chances."""
        return ScoredDraft(draft, self.calibration.calibrate(draft))

    def adapt(self, rows: int) -> None:
        """Update the number of candidates to request, from the number of selected rows."""
        self._is_alone = False
        self._num_draft_tokens = min(max(2 * rows, self._num_draft_tokens - 1, MIN_ROWS), MAX_ROWS)

    def padding_rows(self, draft: Draft, context_length: int) -> int:
        """Return how many padding rows make the forward pass at least a tenth cheaper, or 0.

        In half precision some CPUs compute a few rows faster than one. Some engines are fastest with the number of
        rows of the last forward pass, or with the preferred number.
        """
        return cheapest_padding(self.cost, context_length, 1 + len(draft), self.preferred.rows)

    def observe_accepted(self, accepted: Accepted) -> None:
        """Use the emitted tokens to update the calibration and the preferred number of rows."""
        self.calibration.observe(accepted.tokens)
        self._steps += 1
        if self._last_scored is not None:
            self.preferred.observe(self._last_scored.draft, self._last_scored.chances, accepted.tokens)
            self._last_scored = None

    def observe_time(self, rows: int, context_length: int, seconds: float) -> None:
        """Correct the cost model by the duration of a step."""
        self.cost.observe(rows, context_length, seconds)

    def plain_share(self, rows: int, context_length: int) -> float:
        """Return the cost of a plain step divided by the cost of a forward pass; 0 if costs are not measured."""
        seconds = self.cost.seconds(context_length, rows)
        return seconds[0] / seconds[-1] if self.cost.learns else 0.0


def cheapest_padding(cost: CostModel, context_length: int, rows: int, preferred: int = 0) -> int:
    """Return the number of padding rows that make a forward pass at least a tenth cheaper, or 0.

    Args:
        preferred: Preferred number of rows; 0 for none.
    """
    costs = cost.next_seconds(context_length, max(rows, MIN_ROWS), preferred)[rows - 1 :]
    cheapest = min(costs)
    return costs.index(cheapest) if cheapest < PADDING_GAIN * costs[0] else 0


def _padded_costs(cost: CostModel, context_length: int, rows: int, preferred: int = 0) -> list[float]:
    """Return, for each number of rows, the seconds of a forward pass with the best padding."""
    return list(accumulate(reversed(cost.next_seconds(context_length, rows, preferred)), min))[::-1]


def context_tokens(cost: CostModel, context_lengths: Sequence[int]) -> int:
    """Return the context length that determines the cost of a forward pass over several sequences.

    Returns:
        The sum of the lengths if each sequence's context adds time to a shared forward pass
        (``cost.packing`` > 0), else the greatest length.
    """
    return sum(context_lengths) if cost.packing else max(context_lengths)


def packing_savings(cost: CostModel, context_lengths: Sequence[int], drafts: Sequence[Draft]) -> float:
    """Return the seconds that a forward pass saves because some sequences have no draft."""
    return cost.packing * sum(length for length, draft in zip(context_lengths, drafts, strict=True) if not draft)


def trim_drafts(
    drafts: Sequence[Draft], budgets: Sequence[Budget], context_lengths: Sequence[int], cost: CostModel | None = None
) -> list[Draft]:
    """Trim the drafts of several sequences that share one forward pass.

    The rows of all sequences are sorted by chance. The first rows are selected. Their number
    maximizes the tokens per second: (sequences + sum of chances) / cost(sequences + rows). No row
    is selected unless this rate exceeds the rate without drafts by a margin. If a sequence has
    another budget than an `AdaptiveBudget`, all rows of its draft are verified; the rate includes
    their tokens and their cost. A single sequence uses its own budget.

    Args:
        cost: Cost model of forward passes over several sequences, evaluated at `context_tokens`.
            Default: the cost model of the first adaptive budget.

    Returns:
        For each draft, the rows to verify, in the order of `take_rows_depth_first`.
    """
    adaptive = {index: budget for index, budget in enumerate(budgets) if isinstance(budget, AdaptiveBudget)}
    if len(drafts) == 1 and adaptive:
        return [take_rows_depth_first(drafts[0], adaptive[0].select(drafts[0], context_lengths[0]))]
    trimmed = {
        index: reorder_depth_first(budget.trim(drafts[index], context_lengths[index]))
        for index, budget in enumerate(budgets)
        if index not in adaptive
    }
    tokens = len(drafts) + sum(sum(draft.chances) for draft in trimmed.values())
    fixed_rows = len(drafts) + sum(map(len, trimmed.values()))
    scored = [budget.score(drafts[index]) for index, budget in adaptive.items()]
    if adaptive:
        model = cost or next(iter(adaptive.values())).cost
        savings = packing_savings(model, context_lengths, [trimmed.get(index, EMPTY) for index in range(len(drafts))])
        most_rows = fixed_rows + sum(len(each.draft) for each in scored)
        curve = _padded_costs(model, context_tokens(model, context_lengths), most_rows)[fixed_rows - 1 :]
        costs = [max(each - savings, each / 2) for each in curve]  # noise can make packing cost more than the pass
        packing = [model.packing * context_lengths[index] for index in adaptive]
        for (index, budget), kept in zip(adaptive.items(), select_rows(scored, costs, tokens, packing), strict=True):
            budget.adapt(len(kept))
            trimmed[index] = take_rows_depth_first(drafts[index], kept)
    return [trimmed[index] for index in range(len(drafts))]


@dataclass(frozen=True, slots=True)
class AcceptanceStats:
    """Costs and acceptance rates that all requests to one engine with the same options share.

    Attributes:
        cost: Cost model of forward passes for one sequence.
        batch_cost: Cost model of forward passes for several sequences.
        calibrations: The calibration for each kind of drafter.
        preferred: The preferred number of rows for each kind of drafter.
    """

    cost: CostModel
    batch_cost: CostModel
    calibrations: dict[object, Calibration] = field(default_factory=dict)
    preferred: dict[object, PreferredRows] = field(default_factory=dict)

    def budget(self, drafter: Drafter) -> AdaptiveBudget:
        """Return an adaptive budget for one request.

        Drafters share statistics if they have the same class and the same ``parts`` (the classes
        that a `Blend` combines).
        """
        kind = type(drafter), getattr(drafter, "parts", ())
        preferred = self.preferred.setdefault(kind, PreferredRows(MAX_ROWS))
        return AdaptiveBudget(self.cost, self.calibrations.setdefault(kind, Calibration()), preferred)


def initial_stats(cost: StepCost) -> AcceptanceStats:
    """Return the initial statistics: the measured costs, and no calibrations."""
    return AcceptanceStats(CostModel(cost), CostModel(cost))


def make_budget(
    drafter: Drafter,
    num_draft_tokens: int | None,
    cost: StepCost | None,
    acceptance_stats: Callable[[], AcceptanceStats | None],
) -> Budget:
    """Return the budget of one request.

    Args:
        num_draft_tokens: Fixed number of draft rows per step, or None to adapt it to costs and acceptance rates.
        cost: Fixed costs, which are not corrected by measured times; None: the engine's costs.
        acceptance_stats: Function that returns the statistics of the engine, or None if the engine cannot verify
            drafts. Called only if ``num_draft_tokens`` and ``cost`` are None.
    """
    if num_draft_tokens is not None:
        return FixedBudget(num_draft_tokens)
    if cost is not None:
        return AdaptiveBudget(CostModel(cost, learns=False), Calibration())
    stats = acceptance_stats()
    return FixedBudget(0) if stats is None else stats.budget(drafter)
