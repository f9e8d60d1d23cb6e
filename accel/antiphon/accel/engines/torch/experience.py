"""What requests to one model leave to the next ones: the running cost of its forwards, and calibrated drafters.

Knows neither texts nor drafts. It is kept as long as the model lives.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from transformers import PreTrainedModel

from antiphon.accel.drafting.budget import Budget, Fixed, Measured
from antiphon.accel.drafting.calibration import Calibration
from antiphon.accel.drafting.draft import Drafter
from antiphon.accel.drafting.running_cost import Cost, RunningCost
from antiphon.accel.drafting.step_cost import StepCost
from antiphon.accel.engines.torch.cost_store import step_cost
from antiphon.accel.engines.torch.probe import traits_of


@dataclass(slots=True)
class Experience:
    """What is known of a model's forwards, and of drafters by their kind."""

    cost: Cost
    calibrations: dict[object, Calibration] = field(default_factory=dict)

    def budget(self, drafter: Drafter) -> Measured:
        """A measured budget for one request."""
        return Measured(self.cost, self.calibrations.setdefault(_kind(drafter), Calibration()))


_experience: WeakKeyDictionary[PreTrainedModel, dict[StepCost, Experience]] = WeakKeyDictionary()


def experience_of(model: PreTrainedModel) -> Experience:
    """The experience with a model in its present setting; the first call may measure, in under two seconds."""
    cost, known = step_cost(model), _experience.setdefault(model, {})
    if cost not in known:
        known[cost] = Experience(RunningCost(cost))
    return known[cost]


def budget_for(model: PreTrainedModel, drafter: Drafter, rows: int | None) -> Budget:
    """A budget for one request: of ``rows`` rows, or where that is None by what forwards of this model cost.

    The cost is measured on the first such request to a model, in under two seconds, and kept on disk.
    """
    if rows is not None:
        return Fixed(rows)
    if traits_of(model).level == "plain":
        return Fixed(0)
    return experience_of(model).budget(drafter)


def _kind(drafter: Drafter) -> object:
    """Drafters of one kind are calibrated together: those of one class, and where it has parts, of the same parts."""
    return type(drafter), getattr(drafter, "parts", ())
