"""Cost model: seconds of a forward pass by its rows and its context, measured once and corrected by later steps.

`StepCost` holds the measured curve. `CostModel` corrects this curve by factors that this process
has learned. This module knows neither drafts nor how costs are measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray

CONTEXT_STEP = 64
"""The curve is evaluated again whenever the context has grown by this many tokens."""

DRIFT_RATE, BIAS_RATE = 0.2, 0.1
"""Learning rates. Each error corrects the drift of the machine (all forward passes) by the first
share, and the cost of its range of rows by the second share.
"""

MAX_ERROR = 0.5
"""Maximum error of one step, log(measured / expected time); larger errors may be pauses."""

SHAPE_CHANGE_SHARE = 0.5
"""If no number of rows is preferred, the next forward pass is charged this share of the cost of a
change of rows. The rest is not charged, because later forward passes may keep the new number.
"""

BIAS_DECAY = 1 - 1 / 500
"""Corrections decay by this factor per step, so that row counts that were once found slow are tried again."""


@dataclass(frozen=True, slots=True, eq=False)
class StepCost:
    """Measured seconds of a forward pass by the number of cached tokens and of rows (root and draft).

    Attributes:
        seconds: ``seconds[context_length][rows]``, contexts and rows ascending. Every context has the cost of one
            row, a plain step. Row counts are missing if the model cannot verify them in one forward pass or there was
            no time to measure them. The times hold if the previous forward pass had the same number
            of rows.
        shape_change: Extra seconds if the previous forward pass had another number of rows, for
            engines whose graph adapts to shapes.
        packing: A sequence that verifies a draft adds this many seconds per token of its context to
            a shared forward pass. 0: the cost depends only on the total number of rows.
        measurements: Number of measurements that were combined, see `cost_store.save`.
        is_quiet: Whether other programs used little processor time during the measurement.
    """

    seconds: Mapping[int, Mapping[int, float]]
    shape_change: float = 0.0
    packing: float = 0.0
    measurements: int = 1
    is_quiet: bool = True

    def isotonic(self) -> StepCost:
        """Return the costs, changed so that they never fall as rows are added.

        More rows take no less time, and other programs can only add time. So the best upper bound
        for a number of rows is the smallest time that was measured with at least this number.
        """
        return replace(self, seconds={context: _least_above(row) for context, row in self.seconds.items()})

    @property
    def row_counts(self) -> list[int]:
        """Measured numbers of rows, ascending."""
        return [*next(iter(self.seconds.values()))]

    def curve(self, context_length: int, rows: int) -> NDArray[np.float64]:
        """Return the seconds of a forward pass for each number of rows from 1 to ``rows``.

        Costs are interpolated linearly between measured points and extrapolated with the last
        slope. For row counts that were measured only at the first context, the ratio between the
        contexts is interpolated from other row counts. As the context grows, no cost falls, and the
        cost of more rows grows at least as fast as the cost of fewer rows.
        """
        counts = np.arange(1, rows + 1)
        (start, first), *others = self.seconds.items()
        cost = _interpolate(counts, first)
        if not others:
            return cost
        end, last = others[-1]
        ratios = [last[count] / first[count] for count in last]
        slope = (cost * np.interp(counts, list(last), ratios) - cost) / (end - start)
        slope = np.maximum.accumulate(slope.clip(min=0.0))  # smaller slopes are noise: each row reads the whole context
        after: NDArray[np.float64] = cost + slope * (context_length - start)
        after.clip(min=cost.min() / 2, out=after)
        return after

    def ratio(self, rows: int, context_length: int) -> float:
        """Return the cost of a forward pass as a multiple of a plain step."""
        curve = self.curve(context_length, rows)
        return float(curve[-1] / curve[0])

    def as_dict(self) -> dict[str, Any]:
        """Return, for each context length and number of rows, the milliseconds, and the cost relative to one row."""
        return {
            str(context): {
                "rows": list(measured),
                "ms": [round(1000 * seconds, 3) for seconds in measured.values()],
                "ratio": [round(seconds / measured[1], 3) for seconds in measured.values()],
            }
            for context, measured in self.seconds.items()
        }


class CostModel:
    """Estimates the seconds of forward passes by context and rows, from the measured curve and later steps.

    Only ratios between forward passes affect decisions. So a slowdown of all forward passes is tracked separately
    from errors of the curve. For these errors, each range of rows (1, 2, 3 to 4, 5 to 8, ...) has
    its own correction, which is learned slowly.

    Args:
        learns: Whether steps correct the costs. False for known costs, and for results that must not depend on the
            clock; a change of the number of rows then costs nothing.
    """

    def __init__(self, cost: StepCost, *, learns: bool = True) -> None:
        self.cost = cost
        self.learns = learns
        self._drift: float | None = None
        self._biases = [0.0] * 24
        self._last_rows = 0
        self._seen: set[int] = set()
        self._cached: tuple[int, NDArray[np.float64], NDArray[np.int64]] | None = None

    def seconds(self, context_length: int, rows: int) -> list[float]:
        """Return the expected seconds of a forward pass for each number of rows from 1 to ``rows``.

        Only the ratios between these values are reliable.
        """
        curve, ranges = self._curve(context_length, rows)
        seconds: list[float] = (curve * np.exp(self._biases)[ranges])[:rows].tolist()
        return seconds

    def next_seconds(self, context_length: int, rows: int, preferred: int = 0) -> list[float]:
        """Return the seconds of the next forward pass, including the cost of changing the number of rows.

        Without a preferred number of rows, only the share `SHAPE_CHANGE_SHARE` of that cost is added.

        Args:
            preferred: Preferred number of rows. If given, the cost of returning to it is included. 0: none.

        Returns:
            Seconds for 1, 2, ..., ``rows`` rows. If a change of the number of rows has a cost, the
            list is at least as long as the last forward pass had rows, and as the preferred number.
        """
        change = self.shape_change
        if not change:
            return self.seconds(context_length, rows)
        seconds = self.seconds(context_length, max(rows, self._last_rows, preferred))
        leaving, returning = (change, change) if preferred else (SHAPE_CHANGE_SHARE * change, 0.0)
        return [
            each + leaving * (count != self._last_rows) + returning * (count != preferred)
            for count, each in enumerate(seconds, 1)
        ]

    @property
    def shape_change(self) -> float:
        """Extra seconds of a forward pass with another number of rows than the previous one."""
        return self.cost.shape_change if self.learns else 0.0

    @property
    def row_counts(self) -> Sequence[int]:
        """Measured numbers of rows, ascending; costs between them are interpolated."""
        return self.cost.row_counts

    @property
    def packing(self) -> float:
        """Seconds that a sequence with a draft adds to a shared forward pass for each token of the sequence's context.

        If the value is not 0, the ``context_length`` of a shared forward pass is the sum over its
        sequences, and ``seconds`` assumes that all of them verify a draft.
        """
        return self.cost.packing

    def observe(self, rows: int, context_length: int, seconds: float, saved: float = 0.0) -> None:
        """Correct the costs by one step. The first forward pass of each shape is ignored, because it is slower.

        Args:
            saved: Seconds that the pass saved because some of its sequences had no draft
                (`antiphon.accel.drafting.budget.packing_savings`).
        """
        last, self._last_rows = self._last_rows, rows
        if not self.learns or rows not in self._seen:
            self._seen.add(rows)
            return
        curve, _ = self._curve(context_length, rows)
        own = _row_range(rows)
        change = 0.0 if rows == last else self.cost.shape_change
        expected = max(float(curve[rows - 1]) - saved, float(curve[rows - 1]) / 2) + change
        error = log(max(seconds, 1e-9) / expected) - self._biases[own]
        if self._drift is None:
            self._drift = error  # the first step shows the current load
        error = min(max(error - self._drift, -MAX_ERROR), MAX_ERROR)
        self._drift += DRIFT_RATE * error
        self._biases = [BIAS_DECAY * bias for bias in self._biases]
        self._biases[own] += BIAS_RATE * error

    def _curve(self, context_length: int, rows: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return two arrays: the seconds and the row range (`_row_range`) of 1, 2, ... rows.

        Each array has at least ``rows`` entries.
        """
        place = context_length // CONTEXT_STEP
        if self._cached is None or self._cached[0] != place or len(self._cached[1]) < rows:
            size = max(rows, CONTEXT_STEP)
            ranges = np.array([_row_range(count) for count in range(1, size + 1)])
            self._cached = (place, self.cost.curve(place * CONTEXT_STEP + CONTEXT_STEP // 2, size), ranges)
        return self._cached[1:]


def _row_range(rows: int) -> int:
    """Return the index of the range that contains a number of rows: 0 for 1 row, 1 for 2, 2 for 3 to 4, and so on."""
    return (rows - 1).bit_length()


def _least_above(measured: Mapping[int, float]) -> dict[int, float]:
    least = [*accumulate([*measured.values()][::-1], min)]
    return dict(zip(measured, reversed(least), strict=True))


def _interpolate(counts: NDArray[np.int64], measured: Mapping[int, float]) -> NDArray[np.float64]:
    """Return the seconds for each number of rows in ``counts``, by linear inter- and extrapolation."""
    cost = np.interp(counts, list(measured), list(measured.values()))
    if len(measured) > 1:
        (low, below), (high, above) = list(measured.items())[-2:]
        cost += np.maximum(counts - high, 0) * max(above - below, 0.0) / (high - low)
    return cost
