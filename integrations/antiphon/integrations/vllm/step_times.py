"""A model of step time by number of rows, learned from measured steps."""

from __future__ import annotations

from math import exp, log

INITIAL_SLOPE = 0.02
"""Initial cost of a further row relative to a one-row step, before any measurement: low, so that drafts are tried."""

PRIOR_ROWS = 32
"""The fit starts from two imagined steps, of 1 and 1 + `PRIOR_ROWS` rows, that lie on the line of `INITIAL_SLOPE`."""

DECAY = 1 - 1 / 200
"""Factor by which the weight of older steps shrinks with each step, because load and context lengths change."""

MAX_RATIO = 3.0
"""A step's time is clipped to this multiple of the expected one (or its inverse), because the machine may pause."""

ERROR_RATE, MAX_ERROR = 0.15, 0.7
"""Learning rate of a range's correction, and the limit to which an error is clipped; both in logarithms of time."""


class StepTimes:
    """A weighted line through rows and seconds of all steps, with a correction for each doubling of rows.

    Large batches rarely have the same number of rows twice, so each step has to improve the estimates for all numbers.
    Cost increases in steps, so each range of rows (1, 2, 3 to 4, 5 to 8, ...) has its own correction.
    """

    def __init__(self) -> None:
        self._sums: tuple[float, ...] | None = None  # of weight, rows, seconds, rows * rows, rows * seconds
        self._errors = [0.0] * 24

    def seconds(self, rows: int) -> list[float]:
        """Return the seconds of steps of 1 to ``rows`` rows; before any step they are relative to one row."""
        intercept, slope = self._line()
        scales = [exp(error) for error in self._errors]
        return [(intercept + slope * count) * scales[(count - 1).bit_length()] for count in range(1, rows + 1)]

    def observe(self, rows: int, seconds: float) -> None:
        """Learn the duration of a step.

        Args:
            rows: Number of rows of the step, at least 1.
            seconds: Its duration.
        """
        if self._sums is None:
            level = seconds / (1 + INITIAL_SLOPE * (rows - 1))
            self._sums = (0.0,) * 5
            self._add(1, level)
            self._add(1 + PRIOR_ROWS, level * (1 + INITIAL_SLOPE * PRIOR_ROWS))
            return
        intercept, slope = self._line()
        expected = intercept + slope * rows
        clipped = min(max(seconds, expected / MAX_RATIO), expected * MAX_RATIO)
        own = (rows - 1).bit_length()
        error = log(clipped / expected) - self._errors[own]
        self._errors = [DECAY * each for each in self._errors]
        self._errors[own] += ERROR_RATE * min(max(error, -MAX_ERROR), MAX_ERROR)
        self._add(rows, clipped)

    def _add(self, rows: int, seconds: float) -> None:
        values = (1.0, float(rows), seconds, float(rows * rows), rows * seconds)
        self._sums = tuple(DECAY * old + new for old, new in zip(self._sums or (0.0,) * 5, values, strict=True))

    def _line(self) -> tuple[float, float]:
        """Return the intercept and the slope of the least-squares line; neither is negative."""
        if self._sums is None:
            return 1.0 - INITIAL_SLOPE, INITIAL_SLOPE
        weight, rows, seconds, squares, products = self._sums
        spread = weight * squares - rows * rows
        slope = max((weight * products - rows * seconds) / spread, 0.0)
        intercept = (seconds - slope * rows) / weight
        return (intercept, slope) if intercept > 0 else (0.0, seconds / rows)
