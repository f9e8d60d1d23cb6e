"""The preferred number of rows of a step, for engines on which changing the number of rows is expensive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from antiphon.accel.drafting.draft import ROOT, Draft, Tokens

STEP_WEIGHT = 1 / 32
"""Weight of one step in the moving average over all steps."""

SWITCH_GAIN = 1.04
"""Another number of rows is only preferred if it gives this many times the tokens per second,
because the average fluctuates by a few percent.
"""


class PreferredRows:
    """The constant number of rows, with the root, that gives the most tokens per second.

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
        """Update the moving averages of the tokens gained with 1, 2, ... candidates; further candidates gain none."""
        share = max(STEP_WEIGHT, 1 / (self._steps + 1))
        self._gains *= 1 - share
        count = min(len(gains), len(self._gains) - 1)
        if count:
            self._gains[1 : count + 1] += share * gains[:count]
            self._gains[count + 1 :] += share * gains[count - 1]
        self._steps += 1
