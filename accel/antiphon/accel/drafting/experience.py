"""What requests to a model leave to the next ones: what forwards cost, and what drafts are worth. Knows no models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from antiphon.accel.drafting.budget import MOST, Budget, Fixed, Measured
from antiphon.accel.drafting.calibration import Calibration
from antiphon.accel.drafting.draft import Drafter
from antiphon.accel.drafting.running_cost import Cost, FixedCost, RunningCost
from antiphon.accel.drafting.step_cost import StepCost
from antiphon.accel.drafting.usual import UsualRows


@dataclass(frozen=True, slots=True)
class Experience:
    """What requests to a model in one setting leave to the next ones: costs, calibrated drafters, and usual rows."""

    cost: Cost
    shared_cost: Cost
    calibrations: dict[object, Calibration] = field(default_factory=dict)
    usual: dict[object, UsualRows] = field(default_factory=dict)

    def budget(self, drafter: Drafter) -> Measured:
        """A measured budget for one request. Drafters of one class, and of the same parts, are calibrated together."""
        kind = type(drafter), getattr(drafter, "parts", ())
        usual = self.usual.setdefault(kind, UsualRows(MOST))
        return Measured(self.cost, self.calibrations.setdefault(kind, Calibration()), usual)


def beginning(cost: StepCost) -> Experience:
    """No experience yet: forwards cost what was measured, and no drafter is calibrated."""
    return Experience(RunningCost(cost), RunningCost(cost))


def budget_of(
    drafter: Drafter, rows: int | None, cost: StepCost | None, experience: Callable[[], Experience | None]
) -> Budget:
    """A budget for one request: of ``rows`` rows, or where that is None by what forwards cost.

    With a ``cost`` nothing is learned from the clock: forwards are taken to cost that. Without one the engine's
    ``experience`` is asked for; where it has none, no draft can pay.
    """
    if rows is not None:
        return Fixed(rows)
    if cost is not None:
        return Measured(FixedCost(cost), Calibration())
    known = experience()
    return Fixed(0) if known is None else known.budget(drafter)
