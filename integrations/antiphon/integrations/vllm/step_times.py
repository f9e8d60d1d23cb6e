"""What steps of an engine take by their rows, learned from the steps themselves. Knows no requests and no drafts."""

from __future__ import annotations

from math import exp, log

SLOPE = 0.02
"""What a further row is thought to cost, in steps of one row, before steps have shown it: little, so it is tried."""

AHEAD = 32
"""The line begins as if a step of one row and a step of so many rows had been seen, `SLOPE` apart."""

FADE = 1 - 1 / 200
"""Each step weighs so much less when the next one is seen: engines become busier and contexts longer."""

PAUSE = 3.0
"""A step that takes so many times what was expected is a pause of the machine, and counts as that at most."""

SHARE, JUMP = 0.15, 0.7
"""The share of a step's error that goes to its own range of rows, and the largest error, both of logarithms."""


class StepTimes:
    """A line through rows and seconds of all steps, the latest weighing most, and its error for each doubling of rows.

    Batches of many requests hardly ever have the same number of rows twice, so what one step has taken has to say
    something about all others; and costs come in stairs, so each range of rows (1, 2, 3 to 4, 5 to 8, ...) has a
    correction of its own.
    """

    def __init__(self) -> None:
        self._sums: tuple[float, ...] | None = None  # of weights, rows, seconds, rows * rows, rows * seconds
        self._errors = [0.0] * 24

    def seconds(self, rows: int) -> list[float]:
        """Seconds of steps of 1 to ``rows`` rows; right relative to each other from the beginning."""
        flat, slope = self._line()
        scales = [exp(error) for error in self._errors]
        return [(flat + slope * count) * scales[(count - 1).bit_length()] for count in range(1, rows + 1)]

    def observe(self, rows: int, seconds: float) -> None:
        """Learn what a step of so many rows has taken."""
        if self._sums is None:
            level = seconds / (1 + SLOPE * (rows - 1))
            self._sums = (0.0,) * 5
            self._add(1, level)
            self._add(1 + AHEAD, level * (1 + SLOPE * AHEAD))
            return
        flat, slope = self._line()
        expected = flat + slope * rows
        taken = min(max(seconds, expected / PAUSE), expected * PAUSE)
        own = (rows - 1).bit_length()
        error = log(taken / expected) - self._errors[own]
        self._errors = [FADE * each for each in self._errors]
        self._errors[own] += SHARE * min(max(error, -JUMP), JUMP)
        self._add(rows, taken)

    def _add(self, rows: int, seconds: float) -> None:
        values = (1.0, float(rows), seconds, float(rows * rows), rows * seconds)
        self._sums = tuple(FADE * old + new for old, new in zip(self._sums or (0.0,) * 5, values, strict=True))

    def _line(self) -> tuple[float, float]:
        """Seconds at no rows and for each row: least squares; neither is negative."""
        if self._sums is None:
            return 1.0 - SLOPE, SLOPE
        weight, rows, seconds, squares, products = self._sums
        spread = weight * squares - rows * rows
        slope = max((weight * products - rows * seconds) / spread, 0.0)
        flat = (seconds - slope * rows) / weight
        return (flat, slope) if flat > 0 else (0.0, seconds / rows)
