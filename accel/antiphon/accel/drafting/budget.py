"""How many rows are worth verifying in this step: a fixed number, or what measured cost and calibrated chances say.

Knows neither who drafts nor how a draft is verified. What it decides never changes the text, only the time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol
from weakref import WeakKeyDictionary

from transformers import PreTrainedModel

from antiphon.accel.drafting.calibration import Calibration, RequestCalibration
from antiphon.accel.drafting.draft import ROOT, Accepted, Draft, Drafter, select, trim, without_probes
from antiphon.accel.drafting.running_cost import RunningCost
from antiphon.accel.drafting.step_cost import StepCost
from antiphon.accel.engines.torch.cost_store import step_cost
from antiphon.accel.engines.torch.probe import traits_of

MOST = 63
"""Rows of the largest draft: with its root, the largest forward that is measured."""

FIRST, FEWEST = 32, 8
"""How many rows a drafter is asked for at first, and at least."""

MARGIN = 1.03
"""A draft has to promise so many times the tokens per second of a plain step: costs are known to a few percent."""

FREE = 0.9
"""Rows that only fill a forward have to bring its cost down to this: far below what noise would feign."""


class Budget(Protocol):
    """Who decides which rows of a draft are verified. One request has one."""

    @property
    def rows(self) -> int:
        """How many candidates the drafter is asked for."""

    def trim(self, draft: Draft, context: int, texts: int = 1) -> Draft:
        """The rows to verify, after ``context`` tokens, in a forward shared by so many ``texts`` with such a draft."""

    def pads(self, draft: Draft, context: int) -> int:
        """How many rows of no meaning make a forward of this draft cheaper."""

    def learn(self, accepted: Accepted) -> None:
        """Learn how the text went on."""

    def spent(self, rows: int, context: int, seconds: float) -> None:
        """Learn what a forward of so many rows, with walk and all, has cost."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Verifies up to ``rows`` rows of every draft."""

    rows: int

    def trim(self, draft: Draft, context: int, texts: int = 1) -> Draft:
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

    def __init__(self, cost: RunningCost, calibration: Calibration) -> None:
        self.cost = cost
        self.calibration = RequestCalibration(calibration)
        self._asked = FIRST

    @property
    def rows(self) -> int:
        """Twice what has paid lately: most drafts are far smaller than the largest that could ever pay."""
        return self._asked

    def trim(self, draft: Draft, context: int, texts: int = 1) -> Draft:
        """The rows that promise the most tokens per second, each candidate with the probes below it or none with any.

        What the answers to probes are worth, in tokens, is their drafter's to say.
        """
        chances = self.calibration.chances(without_probes(draft))
        order = sorted(range(len(chances)), key=chances.__getitem__, reverse=True)  # a parent is likelier, or before
        costs = self._costs(context, len(draft), texts)
        rates = _rates([chances[row] for row in order], [1] * len(order), costs)
        kept = rates.index(max(rates)) if max(rates) > MARGIN * rates[0] else 0
        taken = order[:kept]
        if draft.probes:
            asked = draft.asked
            groups = [asked.get(ROOT, []), *([row, *asked.get(row, ())] for row in order)]
            gains = [*chances, *draft.chances[len(chances) :]]
            probing = _rates([sum(gains[row] for row in group) for group in groups], list(map(len, groups)), costs)[1:]
            if max(probing) > max(rates[kept], MARGIN * rates[0]):
                kept = probing.index(max(probing))
                taken = [row for group in groups[: 1 + kept] for row in group]
        self._asked = min(max(2 * len(taken), self._asked - 1, FEWEST), MOST)
        return draft if len(taken) == len(draft) else select(draft, sorted(taken))

    def pads(self, draft: Draft, context: int) -> int:
        """As many as make the forward a tenth cheaper, where any do: in half precision, some CPUs prefer a few rows."""
        costs = self.cost.seconds(context, max(1 + len(draft), FEWEST))[len(draft) :]
        cheapest = min(costs)
        return costs.index(cheapest) if cheapest < FREE * costs[0] else 0

    def learn(self, accepted: Accepted) -> None:
        """Calibrate the chances of this draft and of earlier ones."""
        self.calibration.observe(accepted.tokens)

    def spent(self, rows: int, context: int, seconds: float) -> None:
        """Correct the cost."""
        self.cost.observe(rows, context, seconds)

    def _costs(self, context: int, rows: int, texts: int) -> list[float]:
        """Seconds of a forward by the draft rows of each text; where more rows are cheaper, filled up to them."""
        costs = self.cost.seconds(context, texts * max(1 + rows, FEWEST))[texts - 1 :: texts]
        return list(accumulate(reversed(costs), min))[::-1]


def _rates(gains: Sequence[float], sizes: Sequence[int], costs: Sequence[float]) -> list[float]:
    """Tokens per second of a plain step, and of forwards with the first group of rows, the first two, ..."""
    tokens, rows = accumulate(gains, initial=1.0), accumulate(sizes, initial=0)
    return [token / costs[count] for token, count in zip(tokens, rows, strict=True)]


@dataclass(frozen=True, slots=True)
class _Experience:
    """What requests to one model leave to the next ones."""

    cost: RunningCost
    calibrations: dict[object, Calibration] = field(default_factory=dict)


_experience: WeakKeyDictionary[PreTrainedModel, dict[StepCost, _Experience]] = WeakKeyDictionary()


def budget_for(model: PreTrainedModel, drafter: Drafter, rows: int | None) -> Budget:
    """A budget for one request: of ``rows`` rows, or where that is None by what forwards of this model cost.

    The cost is measured on the first such request to a model, in under two seconds, and kept on disk. What requests
    teach of cost and of kinds of drafters is kept as long as the model lives.
    """
    if rows is not None:
        return Fixed(rows)
    if traits_of(model).level == "plain":
        return Fixed(0)
    cost = step_cost(model)
    known = _experience.setdefault(model, {})
    if cost not in known:
        known[cost] = _Experience(RunningCost(cost))
    experience = known[cost]
    return Measured(experience.cost, experience.calibrations.setdefault(type(drafter), Calibration()))
