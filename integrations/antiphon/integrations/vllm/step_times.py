"""Estimate, from measured steps, the time of a step with a given number of rows; allocate draft tokens accordingly."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log

from antiphon.accel.drafting.row_selection import ScoredDraft, select_rows

INITIAL_SLOPE = 0.006
"""Assumed cost of a further row relative to a one-row step, before any measurement: low, so that drafts are tried."""

PRIOR_PAIRS = 5
"""Weight of `INITIAL_SLOPE` in the slope, as a number of pairs of consecutive steps."""

MAX_DEVIATION = 0.5
"""The time between two steps is clipped to the expected difference plus or minus this fraction of a step's time."""

DECAY = 1 - 1 / 200
"""Factor by which the weight of older steps shrinks with each step, because load and context lengths change."""

MAX_RATIO = 3.0
"""A step's time is clipped to the expected time multiplied or divided by this, because the machine may pause."""

ERROR_RATE, MAX_ERROR = 0.15, 0.7
"""Learning rate of the correction for a range of rows, and limit of its error; both for logarithms of times."""


class StepTimes:
    """The seconds of a step as a linear function of its rows, fitted to all steps, with a correction per range of rows.

    Large batches rarely have the same number of rows twice, so each step must improve the estimates
    for all numbers of rows. The slope, the cost of a row, is estimated from the differences between
    consecutive steps, because distant steps also differ in their requests, context lengths and
    machine load. The cost does not grow evenly, so each range of rows (1, 2, 3 to 4, 5 to 8, ...)
    has its own correction.
    """

    def __init__(self) -> None:
        self._weight = self._rows = self._seconds = 0.0  # decayed sums over steps
        self._pairs = self._squares = self._products = 0.0  # over pairs: 1, rows * rows, rows * seconds
        self._last: tuple[int, float] | None = None
        self._errors = [0.0] * 24

    def seconds(self, rows: int) -> list[float]:
        """Return the expected seconds of a step for each number of rows from 1 to ``rows``.

        Before the first measurement, the values are multiples of the time of a step of one row.
        """
        intercept, slope = self._line()
        scales = [exp(error) for error in self._errors]
        return [(intercept + slope * count) * scales[(count - 1).bit_length()] for count in range(1, rows + 1)]

    def row_seconds(self) -> float:
        """Return the seconds that one more row adds.

        Before the first measurement, the result is a fraction of the time of a step of one row.
        """
        return self._line()[1]

    def allocate(self, drafts: Sequence[ScoredDraft], *, num_without_draft: int = 0) -> list[int]:
        """Return how many tokens of each draft to verify, so that the batch emits the most tokens per second.

        The expected tokens of a step are one per request plus the sum of the acceptance chances of its draft tokens.
        The first draft token of a request costs as much as two rows, because verifying any draft has a fixed cost. On
        a saturated machine, further rows cost more than they gain, so requests decode without drafts.

        Args:
            drafts: Chains with the acceptance chance of every token.
        """
        requests = len(drafts) + num_without_draft
        rows = sum(len(draft.chances) for draft in drafts)
        if not rows:
            return [0] * len(drafts)
        costs = self.seconds(requests + rows)[requests - 1 :]
        first_row_costs = [self.row_seconds()] * len(drafts)
        return [len(kept) for kept in select_rows(drafts, costs, float(requests), first_row_costs)]

    def observe(self, rows: int, seconds: float) -> None:
        """Update the estimates with a measured step."""
        if self._weight:
            intercept, slope = self._line()
            expected = intercept + slope * rows
            seconds = min(max(seconds, expected / MAX_RATIO), expected * MAX_RATIO)
            own = (rows - 1).bit_length()
            error = log(seconds / expected) - self._errors[own]
            self._errors = [DECAY * each for each in self._errors]
            self._errors[own] += ERROR_RATE * min(max(error, -MAX_ERROR), MAX_ERROR)
        if self._last:
            self._observe_difference(rows - self._last[0], seconds - self._last[1])
        self._weight = DECAY * self._weight + 1
        self._rows = DECAY * self._rows + rows
        self._seconds = DECAY * self._seconds + seconds
        self._last = rows, seconds

    def _observe_difference(self, rows: int, seconds: float) -> None:
        """Update the slope with the differences in rows and seconds between a step and the step before it."""
        expected, most = self._line()[1] * rows, MAX_DEVIATION * self._seconds / self._weight
        seconds = min(max(seconds, expected - most), expected + most)
        self._pairs = DECAY * self._pairs + 1
        self._squares = DECAY * self._squares + rows * rows
        self._products = DECAY * self._products + rows * seconds

    def _line(self) -> tuple[float, float]:
        """Return the intercept and the slope of the line; neither is negative."""
        if not self._weight:
            return 1.0 - INITIAL_SLOPE, INITIAL_SLOPE
        mean_rows, mean_seconds = self._rows / self._weight, self._seconds / self._weight
        slope = INITIAL_SLOPE * mean_seconds / (1 + INITIAL_SLOPE * (mean_rows - 1))
        if self._squares:
            prior = PRIOR_PAIRS * self._squares / self._pairs  # as many pairs with the mean squared difference
            slope = max((self._products + prior * slope) / (self._squares + prior), 0.0)
        intercept = mean_seconds - slope * mean_rows
        return (intercept, slope) if intercept > 0 else (0.0, mean_seconds / mean_rows)
