"""What a forward costs now: the measured curve, corrected by what real steps take. Knows no drafts and no chances."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from antiphon.accel.drafting.step_cost import StepCost

GRAIN = 64
"""The curve is read anew after so many tokens of context."""

DRIFT, BIAS = 0.2, 0.1
"""Of each error, the share that is attributed to the machine (all forwards became slower or faster), and the share
that is attributed to forwards of this many rows alone."""

JUMP = 0.5
"""The largest error, in logarithms, that is taken from one step: a pause of the machine is not a cost."""

CHANGE = 0.5
"""The share of a change's cost that the next forward has to be worth where no rows are usual: those after it may keep
its rows."""

FADE = 1 - 1 / 500
"""Corrections that are not renewed fade by this factor each step, so that row counts once found slow are retried."""


class Cost(Protocol):
    """Seconds of forwards by context and rows."""

    def seconds(self, context: int, rows: int) -> list[float]:
        """Seconds of forwards of 1 to ``rows`` rows after ``context`` tokens; right relative to each other."""

    def next_seconds(self, context: int, rows: int, usual: int = 0) -> list[float]:
        """The same of the very next forward, with what it costs to run more or fewer rows than the last one.

        With the rows of a ``usual`` forward, with what it costs to come back to them as well. Where a change costs
        anything it goes on to as many rows as the last forward had, and a usual one.
        """

    @property
    def change(self) -> float:
        """Seconds that a forward takes longer after one of more or fewer rows."""

    @property
    def counts(self) -> Sequence[int]:
        """The numbers of rows that were measured, ascending; between them costs are guessed."""

    @property
    def packing(self) -> float:
        """Seconds for each token before a text that its first row of a draft costs in a forward of several texts.

        Where there are any, ``context`` is of such a forward the tokens before all of its texts, and its seconds are
        those of one in which all of them verify a draft.
        """

    def observe(self, rows: int, context: int, seconds: float, saved: float = 0.0) -> None:
        """Learn what a forward of so many rows has taken, which is ``saved`` seconds below what the curve counts."""


class FixedCost:
    """A curve that real steps do not correct: where what a forward costs is known, or must not depend on the clock."""

    def __init__(self, cost: StepCost) -> None:
        self.cost = cost

    def seconds(self, context: int, rows: int) -> list[float]:
        """The curve's seconds, with contexts rounded as in `RunningCost`."""
        seconds: list[float] = self.cost.curve(_middle(context), rows).tolist()
        return seconds

    def next_seconds(self, context: int, rows: int, usual: int = 0) -> list[float]:
        """The same: it is not known which forward was the last one."""
        return self.seconds(context, rows)

    @property
    def change(self) -> float:
        """None: it is not known which forward was the last one."""
        return 0.0

    @property
    def counts(self) -> Sequence[int]:
        """As they were measured."""
        return self.cost.counts

    @property
    def packing(self) -> float:
        """As it was measured."""
        return self.cost.packing

    def observe(self, rows: int, context: int, seconds: float, saved: float = 0.0) -> None:
        """Nothing is learned."""


class RunningCost:
    """A curve that follows what steps of this process take.

    Only ratios between forwards decide anything. So what slows all of them alike is kept apart from what is wrong
    with the curve: each range of rows (1, 2, 3 to 4, 5 to 8, ...) has a correction of its own, learned slowly.
    """

    def __init__(self, cost: StepCost) -> None:
        self.cost = cost
        self._drift: float | None = None
        self._biases = [0.0] * 24
        self._last = 0
        self._seen: set[int] = set()
        self._read: tuple[int, NDArray[np.float64], NDArray[np.int64]] | None = None

    def seconds(self, context: int, rows: int) -> list[float]:
        """Seconds of forwards of 1 to ``rows`` rows after ``context`` tokens; right relative to each other."""
        curve, ranges = self._curve(context, rows)
        seconds: list[float] = (curve * np.exp(self._biases)[ranges])[:rows].tolist()
        return seconds

    def next_seconds(self, context: int, rows: int, usual: int = 0) -> list[float]:
        """The same, and what a change costs for all rows but those of the last forward, and but the ``usual`` ones.

        Where it is not known what is usual, it is a share of that.
        """
        if not self.cost.change:
            return self.seconds(context, rows)
        seconds = self.seconds(context, max(rows, self._last, usual))
        leaving, returning = (self.cost.change, self.cost.change) if usual else (CHANGE * self.cost.change, 0.0)
        return [
            each + leaving * (count != self._last) + returning * (count != usual)
            for count, each in enumerate(seconds, 1)
        ]

    @property
    def change(self) -> float:
        """As it was measured."""
        return self.cost.change

    @property
    def counts(self) -> Sequence[int]:
        """As they were measured."""
        return self.cost.counts

    @property
    def packing(self) -> float:
        """As it was measured."""
        return self.cost.packing

    def observe(self, rows: int, context: int, seconds: float, saved: float = 0.0) -> None:
        """Correct the cost by one step; the first forward of a shape is slower than all that follow and is left out."""
        last, self._last = self._last, rows
        if rows not in self._seen:
            self._seen.add(rows)
            return
        curve, _ = self._curve(context, rows)
        own = _range(rows)
        change = 0.0 if rows == last else self.cost.change
        expected = max(float(curve[rows - 1]) - saved, float(curve[rows - 1]) / 2) + change
        error = log(max(seconds, 1e-9) / expected) - self._biases[own]
        if self._drift is None:
            self._drift = error  # how busy the machine is today
        error = min(max(error - self._drift, -JUMP), JUMP)
        self._drift += DRIFT * error
        self._biases = [FADE * bias for bias in self._biases]
        self._biases[own] += BIAS * error

    def correction(self, rows: int) -> float:
        """By what factor forwards of so many rows cost more than their curve says, beside what slows all."""
        return exp(self._biases[_range(rows)])

    def _curve(self, context: int, rows: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        place = context // GRAIN
        if self._read is None or self._read[0] != place or len(self._read[1]) < rows:
            size = max(rows, GRAIN)
            ranges = np.array([_range(count) for count in range(1, size + 1)])
            self._read = (place, self.cost.curve(_middle(context), size), ranges)
        return self._read[1:]


def _middle(context: int) -> int:
    """The context at which the curve is read: the middle of its grain."""
    return context // GRAIN * GRAIN + GRAIN // 2


def _range(rows: int) -> int:
    """0 for one row, then one range for every doubling."""
    return (rows - 1).bit_length()
