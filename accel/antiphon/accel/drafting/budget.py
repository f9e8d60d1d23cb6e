"""How many rows are worth verifying in this step: a fixed number, or what measured cost and calibrated chances say.

Knows neither who drafts nor how a draft is verified. What it decides never changes the text, only the time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from antiphon.accel.drafting.calibration import Calibration, RequestCalibration
from antiphon.accel.drafting.draft import EMPTY, Accepted, Draft, select, trim
from antiphon.accel.drafting.paying import ScoredDraft, paying_rows
from antiphon.accel.drafting.running_cost import Cost
from antiphon.accel.drafting.tree import depth_first, select_depth_first
from antiphon.accel.drafting.usual import UsualRows

MOST = 63
"""Rows of the largest draft: with its root, the largest forward that is measured."""

FIRST, FEWEST = 32, 8
"""How many rows a drafter is asked for at first, and at least."""

WIDE = 4
"""Of so many steps one asks for more candidates than a usual step verifies: so it is known what more would bring."""

FREE = 0.9
"""Filler rows have to bring the cost of a forward down to this: noise in the measured cost does less."""


class Budget(Protocol):
    """Who decides which rows of a draft are verified. One request has one."""

    @property
    def rows(self) -> int:
        """How many candidates the drafter is asked for."""

    def trim(self, draft: Draft, context: int) -> Draft:
        """The rows to verify after ``context`` tokens, in a forward for this text alone."""

    def pads(self, draft: Draft, context: int) -> int:
        """How many filler rows, which nobody reads, make a forward of this draft, for this text alone, cheaper."""

    def learn(self, accepted: Accepted) -> None:
        """Learn which tokens the text went on with."""

    def spent(self, rows: int, context: int, seconds: float) -> None:
        """Learn what a forward of so many rows has cost, with everything that a step waits for."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Verifies up to ``rows`` rows of every draft."""

    rows: int

    def trim(self, draft: Draft, context: int) -> Draft:
        """The likeliest ``rows`` rows."""
        return draft if len(draft) <= self.rows else trim(draft, self.rows, sys.maxsize)

    def pads(self, draft: Draft, context: int) -> int:
        """None."""
        return 0

    def learn(self, accepted: Accepted) -> None:
        """Nothing to learn."""

    def spent(self, rows: int, context: int, seconds: float) -> None:
        """Nothing to learn."""


class Measured:
    """Verifies the rows that promise the most tokens per second, none where a plain step does.

    With rows by their calibrated chance, the likeliest first, a forward of the first ``k`` emits 1 + the sum of their
    chances and costs what a forward of 1 + ``k`` rows costs. Every ``k`` is tried, for costs come in steps.
    """

    def __init__(self, cost: Cost, calibration: Calibration, usual: UsualRows | None = None) -> None:
        self.cost = cost
        self.calibration = RequestCalibration(calibration)
        self.usual = usual or UsualRows(MOST)
        self._rows = FIRST
        self._steps = 0
        self._is_alone = True
        self._offered: ScoredDraft | None = None

    @property
    def rows(self) -> int:
        """Twice what has paid lately: most drafts are far smaller than the largest that could ever pay.

        Where steps have a usual number of rows, those of it, but for every fourth step, which tells what more bring.
        """
        is_usual = self.usual.rows and self._is_alone and self._steps % WIDE
        return max(self.usual.rows - 1, FEWEST) if is_usual else self._rows

    def trim(self, draft: Draft, context: int) -> Draft:
        """The rows that promise the most tokens per second; all kept candidates keep their probes, or none does.

        What the logits after a probe are worth, in tokens, is its chance, as its drafter gave it.
        """
        kept = self.kept(draft, context)
        return draft if len(kept) == len(draft) else select(draft, kept)

    def kept(self, draft: Draft, context: int) -> list[int]:
        """The rows that `trim` keeps, ascending."""
        offer = self.offer(draft)
        if self.cost.change and self._steps % WIDE == 0:
            self._offered = offer
            seconds = self.cost.seconds(context, 1 + MOST)
            self.usual.look({rows: seconds[rows - 1] for rows in self.cost.counts}, offer.chances)
        costs = _filled_costs(self.cost, context, max(1 + len(draft), FEWEST), self.usual.rows)
        [kept] = paying_rows([offer], costs, 1.0)
        self.adapt(max(len(kept), self.usual.rows))
        self._is_alone = True
        return kept

    def offer(self, draft: Draft) -> ScoredDraft:
        """The draft with its chances as this request has found them to be."""
        return ScoredDraft(draft, self.calibration.chances(draft))

    def adapt(self, rows: int) -> None:
        """Ask the drafter for more or fewer rows, now that so many paid."""
        self._is_alone = False
        self._rows = min(max(2 * rows, self._rows - 1, FEWEST), MOST)

    def pads(self, draft: Draft, context: int) -> int:
        """As many as make the forward a tenth cheaper, where any do.

        In half precision some CPUs prefer a few rows, and some engines as many as the last forward had, or a usual one.
        """
        return fillers(self.cost, context, 1 + len(draft), self.usual.rows)

    def learn(self, accepted: Accepted) -> None:
        """Calibrate the chances of this draft and of earlier ones, and learn how many rows are worth a usual step."""
        self.calibration.observe(accepted.tokens)
        self._steps += 1
        if self._offered is not None:
            self.usual.learn(self._offered.draft, self._offered.chances, accepted.tokens)
            self._offered = None

    def spent(self, rows: int, context: int, seconds: float) -> None:
        """Correct the cost."""
        self.cost.observe(rows, context, seconds)


def fillers(cost: Cost, context: int, rows: int, usual: int = 0) -> int:
    """How many rows that nobody reads make a forward of ``rows`` rows a tenth cheaper: as many as do, or none."""
    costs = cost.next_seconds(context, max(rows, FEWEST), usual)[rows - 1 :]
    cheapest = min(costs)
    return costs.index(cheapest) if cheapest < FREE * costs[0] else 0


def _filled_costs(cost: Cost, context: int, rows: int, usual: int = 0) -> list[float]:
    """Seconds of a forward by its rows; where more rows are cheaper, it is filled up to them."""
    return list(accumulate(reversed(cost.next_seconds(context, rows, usual)), min))[::-1]


def span(cost: Cost, contexts: Sequence[int]) -> int:
    """The tokens before a forward of several texts: those of all where each packs its own, else of the longest."""
    return sum(contexts) if cost.packing else max(contexts)


def saved(cost: Cost, contexts: Sequence[int], drafts: Sequence[Draft]) -> float:
    """Seconds that a forward of several texts takes less than its curve says, since some of them verify nothing."""
    return cost.packing * sum(context for context, draft in zip(contexts, drafts, strict=True) if not draft)


def share_rows(
    drafts: Sequence[Draft], budgets: Sequence[Budget], contexts: Sequence[int], cost: Cost | None = None
) -> list[Draft]:
    """What to verify of each text's draft in one forward over all of them, in the order of `select_depth_first`.

    ``contexts`` are how many tokens each sequence holds. The forward has one root for each text and the rows of all
    drafts, so the rows of all texts compete: likeliest first, as many as promise the most tokens per second,
    (texts + sum of chances) / cost(texts + rows), if that is more than without them by a margin. The rows of other
    budgets than `Measured` are verified in any case; they count in tokens and in cost. The ``cost`` is that of forwards
    over several texts, or else of the first measured budget, after `span` tokens; texts that verify nothing save its
    ``packing``. One text gets what its own budget trims to.
    """
    measured = {index: budget for index, budget in enumerate(budgets) if isinstance(budget, Measured)}
    if len(drafts) == 1 and measured:
        return [select_depth_first(drafts[0], measured[0].kept(drafts[0], contexts[0]))]
    shared = {
        index: depth_first(budget.trim(drafts[index], contexts[index]))
        for index, budget in enumerate(budgets)
        if index not in measured
    }
    tokens = len(drafts) + sum(sum(draft.chances) for draft in shared.values())
    feeds = len(drafts) + sum(map(len, shared.values()))
    offers = [budget.offer(drafts[index]) for index, budget in measured.items()]
    if measured:
        known = cost or next(iter(measured.values())).cost
        plain = saved(known, contexts, [shared.get(index, EMPTY) for index in range(len(drafts))])
        most = feeds + sum(len(offer.draft) for offer in offers)
        curve = _filled_costs(known, span(known, contexts), most)[feeds - 1 :]
        costs = [max(each - plain, each / 2) for each in curve]  # noise can make packing dearer than a forward
        prices = [known.packing * contexts[index] for index in measured]
        for (index, budget), kept in zip(measured.items(), paying_rows(offers, costs, tokens, prices), strict=True):
            budget.adapt(len(kept))
            shared[index] = select_depth_first(drafts[index], kept)
    return [shared[index] for index in range(len(drafts))]
