"""How many rows pay most where every step verifies as many. Knows neither drafters nor what a change of rows costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from antiphon.accel.drafting.draft import ROOT, Draft, Tokens

SHARE = 1 / 32
"""What one step counts in the mean of all."""

BETTER = 1.04
"""Another number of rows has to bring so many times the tokens per second: the mean wavers by a few percent."""


class UsualRows:
    """The rows, with the root, of a usual step: with these the mean of all steps brings the most tokens per second.

    A step's own draft may be worth more rows or fewer; but where a forward of another number of rows than the last one
    costs more than the rows do, as many in every step are the fastest. Before the first steps are known, it is what the
    first draft promises; then what the text had of drafts, however many of their rows were verified. Requests of a
    kind share it.
    """

    def __init__(self, most: int) -> None:
        self.rows = 0
        """As many as pay; 0 before anything is known."""
        self._gains: NDArray[np.float64] = np.zeros(most + 1)
        self._steps = 0

    def look(self, seconds: Mapping[int, float], chances: Sequence[float]) -> None:
        """Choose by the ``seconds`` of forwards by their rows; ``chances`` are those of the draft at hand."""
        if not self._steps:
            self._note(np.sort(chances)[::-1].cumsum())
        rates = {rows: (1 + self._gains[rows - 1]) / spent for rows, spent in seconds.items()}
        best = max(rates, key=rates.__getitem__)
        if rates[best] > BETTER * rates.get(self.rows, 0.0):
            self.rows = best

    def learn(self, draft: Draft, chances: Sequence[float], tokens: Tokens) -> None:
        """Learn which candidates of a step's draft the text went on with, had all of them been verified."""
        order = sorted(range(len(chances)), key=chances.__getitem__, reverse=True)
        places = {row: place for place, row in enumerate(order, 1)}
        found: list[int] = []
        row = ROOT
        for token in tokens:
            row = draft.children.get(row, {}).get(token, len(draft))
            if row not in places:
                break
            found.append(places[row])
        self._note(np.bincount(np.array(found, dtype=int), minlength=len(self._gains))[1:].cumsum())

    def _note(self, gains: NDArray[np.float64] | NDArray[np.int64]) -> None:
        """Count what the first 1, 2, ... candidates of a step bring; further ones bring no more."""
        share = max(SHARE, 1 / (self._steps + 1))
        self._gains *= 1 - share
        count = min(len(gains), len(self._gains) - 1)
        if count:
            self._gains[1 : count + 1] += share * gains[:count]
            self._gains[count + 1 :] += share * gains[count - 1]
        self._steps += 1
