"""How often a drafter's rows were right, by the chance that it gave them. Knows no model and no cost."""

from __future__ import annotations

from bisect import bisect
from collections import deque
from dataclasses import dataclass

from antiphon.accel.drafting.draft import ROOT, Draft, Tokens, without_probes

EDGES = (0.002, 0.005, 0.012, 0.03, 0.06, 0.12, 0.22, 0.38, 0.56, 0.73, 0.88)
"""The limits of the ranges in which chances are counted, evenly spaced in log odds."""

CELLS = 2 * (len(EDGES) + 1)
"""One for each range, for rows right below the root and for deeper ones."""

PRIOR = 4.0
"""The chance that the drafter gives counts as much as so many trials of a cell."""

MEMORY = 1000.0
"""About so many trials of a cell are remembered; older ones fade."""

REQUEST_PRIOR = 8.0
REQUEST_MEMORY = 30.0
"""The same within a request, where the prior is what earlier requests have counted."""

OPEN = 8
"""So many drafts are kept until further tokens show whether their deeper rows were right."""


class Calibration:
    """How often a drafter's rows were right, given that the row above each was, by the chance that the drafter gave.

    It outlives requests. A row is right where the text turns out to have its token there. That is known without
    verifying the row, so a drafter whose rows are not worth verifying is still judged, at no cost.
    """

    def __init__(self) -> None:
        self.tried = [0.0] * CELLS
        self.held = [0.0] * CELLS

    def chance(self, cell: int, given: float) -> float:
        """The chance that a row of this cell is right where the one above it is; ``given`` is what its drafter says."""
        return (self.held[cell] + PRIOR * given) / (self.tried[cell] + PRIOR)

    def note(self, cell: int, held: bool) -> None:
        """Count one row."""
        _count(self.tried, self.held, cell, held, MEMORY)


@dataclass(slots=True)
class _Open:
    """A draft that the text has followed down to ``row``."""

    draft: Draft
    cells: list[int]
    children: dict[int, dict[int, int]]
    row: int = ROOT


class RequestCalibration:
    """The calibration of one request: it begins with what earlier requests have counted, and adds its own."""

    def __init__(self, known: Calibration) -> None:
        self.known = known
        self.tried = [0.0] * CELLS
        self.held = [0.0] * CELLS
        self._open: deque[_Open] = deque(maxlen=OPEN)

    def chances(self, draft: Draft) -> list[float]:
        """The chance of each candidate that the path down to it is accepted; a child's is never above its parent's.

        The draft is kept, once however often it is asked about before the next tokens: what is observed from now on
        tells which of its rows were right.
        """
        draft = without_probes(draft)
        chances: list[float] = []
        cells: list[int] = []
        for parent, chance in zip(draft.parents, draft.chances, strict=True):
            above = 1.0 if parent == ROOT else draft.chances[parent]
            given = min(chance / above, 1.0) if above > 0 else 0.0
            cell = 2 * bisect(EDGES, given) + (parent != ROOT)
            known = self.known.chance(cell, given)
            own = (self.held[cell] + REQUEST_PRIOR * known) / (self.tried[cell] + REQUEST_PRIOR)
            chances.append(own if parent == ROOT else own * chances[parent])
            cells.append(cell)
        is_kept = bool(self._open) and self._open[-1].row == ROOT and self._open[-1].draft == draft
        if draft.tokens and not is_kept:
            self._open.append(_Open(draft, cells, draft.children))
        return chances

    def observe(self, tokens: Tokens) -> None:
        """Learn from the tokens that the text went on with."""
        self._open = deque((each for each in self._open if self._follow(each, tokens)), maxlen=OPEN)

    def _follow(self, each: _Open, tokens: Tokens) -> bool:
        """Count every row that the tokens show to be right or wrong; whether any are still open."""
        for token in tokens:
            candidates = each.children.get(each.row, {})
            for row in candidates.values():
                held = each.draft.tokens[row] == token
                self.known.note(each.cells[row], held)
                _count(self.tried, self.held, each.cells[row], held, REQUEST_MEMORY)
            if token not in candidates:
                return False
            each.row = candidates[token]
        return each.row in each.children


def _count(tried: list[float], held: list[float], cell: int, is_held: bool, memory: float) -> None:
    fade = 1 - 1 / memory
    tried[cell] = tried[cell] * fade + 1
    held[cell] = held[cell] * fade + is_held
