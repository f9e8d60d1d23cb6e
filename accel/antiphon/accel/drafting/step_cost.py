"""What a forward costs by how many rows it verifies: a curve through measured points. Knows nothing of who measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class StepCost:
    """Seconds of one forward by the tokens before it and by its rows, the root and the draft's.

    ``seconds[context][rows]`` are what was measured, contexts and rows ascending; every context has the cost of one
    row, a plain step. Row counts that the model cannot verify in one forward, or that there was no time for, are not
    there. They hold for a forward after another of as many rows; after one of more or fewer, engines whose graph adapts
    to its shapes take ``change`` seconds more. A text that shares a forward costs ``packing`` seconds for each token
    before it as soon as it verifies any draft; where that is 0, it does not matter whose the rows are.
    """

    seconds: Mapping[int, Mapping[int, float]]
    change: float = 0.0
    packing: float = 0.0

    @property
    def counts(self) -> list[int]:
        """The numbers of rows that were measured, ascending."""
        return [*next(iter(self.seconds.values()))]

    def curve(self, context: int, rows: int) -> NDArray[np.float64]:
        """Seconds of forwards of 1 to ``rows`` rows after so many tokens, of shape (rows,).

        Between what was measured it is a straight line, and beyond the last one it goes on as before. Contexts beyond
        the first may lack rows that the first has: there the ratio of both stays what it was.
        """
        counts = np.arange(1, rows + 1)
        (start, first), *others = self.seconds.items()
        cost = _line(counts, first)
        if not others:
            return cost
        end, last = others[-1]
        ratios = [last[count] / first[count] for count in last]
        slope = (cost * np.interp(counts, list(last), ratios) - cost) / (end - start)
        after: NDArray[np.float64] = cost + slope * (context - start)
        after.clip(min=cost.min() / 2, out=after)  # noise can make a slope negative
        return after

    def ratio(self, rows: int, context: int) -> float:
        """What a forward of so many rows costs in plain steps."""
        curve = self.curve(context, rows)
        return float(curve[-1] / curve[0])

    def as_dict(self) -> dict[str, Any]:
        """By context the rows, their milliseconds and the ratio to one row."""
        return {
            str(context): {
                "rows": list(measured),
                "ms": [round(1000 * seconds, 3) for seconds in measured.values()],
                "ratio": [round(seconds / measured[1], 3) for seconds in measured.values()],
            }
            for context, measured in self.seconds.items()
        }


def _line(counts: NDArray[np.int64], measured: Mapping[int, float]) -> NDArray[np.float64]:
    """Seconds at ``counts`` rows: on the lines between what was measured, and on from the last one."""
    cost = np.interp(counts, list(measured), list(measured.values()))
    if len(measured) > 1:
        (low, below), (high, above) = list(measured.items())[-2:]
        cost += np.maximum(counts - high, 0) * max(above - below, 0.0) / (high - low)
    return cost
