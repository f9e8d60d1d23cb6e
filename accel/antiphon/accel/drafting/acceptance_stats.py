"""Statistics that all requests to one engine share: learned costs, calibrations and preferred numbers of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from antiphon.accel.drafting.budget import MAX_ROWS, AdaptiveBudget, Budget, FixedBudget
from antiphon.accel.drafting.calibration import Calibration
from antiphon.accel.drafting.cost_model import CostModel, StepCost
from antiphon.accel.drafting.draft import Drafter
from antiphon.accel.drafting.preferred_rows import PreferredRows


@dataclass(frozen=True, slots=True)
class AcceptanceStats:
    """Costs and acceptance rates that all requests to one engine with the same options share.

    Attributes:
        cost: Cost model of forward passes for one sequence.
        batch_cost: Cost model of forward passes for several sequences.
        calibrations: The calibration for each kind of drafter.
        preferred: The preferred number of rows for each kind of drafter.
    """

    cost: CostModel
    batch_cost: CostModel
    calibrations: dict[object, Calibration] = field(default_factory=dict)
    preferred: dict[object, PreferredRows] = field(default_factory=dict)

    def budget(self, drafter: Drafter) -> AdaptiveBudget:
        """Return an adaptive budget for one request.

        Drafters share statistics if they have the same class and are composed of the same classes.
        """
        kind = type(drafter), getattr(drafter, "parts", ())
        preferred = self.preferred.setdefault(kind, PreferredRows(MAX_ROWS))
        return AdaptiveBudget(self.cost, self.calibrations.setdefault(kind, Calibration()), preferred)


def initial_stats(cost: StepCost) -> AcceptanceStats:
    """Return the initial statistics: the measured costs, and no calibrations."""
    return AcceptanceStats(CostModel(cost), CostModel(cost))


def make_budget(
    drafter: Drafter,
    num_draft_tokens: int | None,
    cost: StepCost | None,
    acceptance_stats: Callable[[], AcceptanceStats | None],
) -> Budget:
    """Return the budget of one request.

    Args:
        num_draft_tokens: Fixed number of draft rows per step, or None to adapt it to costs and acceptance rates.
        cost: Fixed costs, which are not corrected by measured times; None: the engine's costs.
        acceptance_stats: Function that returns the statistics of the engine, or None if the engine cannot verify
            drafts. Called only if ``num_draft_tokens`` and ``cost`` are None.
    """
    if num_draft_tokens is not None:
        return FixedBudget(num_draft_tokens)
    if cost is not None:
        return AdaptiveBudget(CostModel(cost, learns=False), Calibration())
    stats = acceptance_stats()
    return FixedBudget(0) if stats is None else stats.budget(drafter)
