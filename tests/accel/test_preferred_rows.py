"""If a shape change is expensive, steps have a preferred number of rows: that with the most tokens per second."""

import pytest

from antiphon.accel.drafting.budget import EXPLORE_EVERY, MAX_ROWS, AdaptiveBudget, PreferredRows
from antiphon.accel.drafting.calibration import Calibration
from antiphon.accel.drafting.cost_model import CostModel, StepCost
from antiphon.accel.drafting.draft import EMPTY, Accepted, chain

COSTS = {1: 1.0, 4: 1.2, 8: 1.4, 16: 1.9, 32: 3.0}
CHANGING = StepCost({64: COSTS}, shape_change=0.4)


def observed(preferred: PreferredRows, accepted: int, steps: int = 40) -> PreferredRows:
    """Observe steps in which the text continued with the first ``accepted`` tokens of a chain of 30."""
    draft = chain([*range(5, 35)])
    for _ in range(steps):
        preferred.update(COSTS, draft.chances)
        preferred.observe(draft, draft.chances, [*range(5, 5 + accepted), 1])
    return preferred


@pytest.mark.parametrize(("accepted", "rows"), [(0, 1), (2, 4), (6, 8), (13, 16), (30, 32)])
def test_the_preferred_rows_have_the_most_accepted_tokens_per_second(accepted: int, rows: int) -> None:
    assert observed(PreferredRows(MAX_ROWS), accepted).rows == rows


def test_the_preferred_rows_follow_a_change_of_the_acceptance_rate() -> None:
    preferred = observed(PreferredRows(MAX_ROWS), 0)
    assert observed(preferred, 13, steps=100).rows == 16


def test_a_step_keeps_the_preferred_rows_unless_another_number_pays_for_both_changes() -> None:
    budget = AdaptiveBudget(CostModel(CHANGING), Calibration(), observed(PreferredRows(MAX_ROWS), 6))
    budget.observe_time(8, 64, COSTS[8])
    assert len(budget.trim(chain([5] * 20, [0.1] * 20), 64)) == 7
    assert len(budget.trim(EMPTY, 64)) == 0
    assert budget.padding_rows(EMPTY, 64) == 7
    assert len(budget.trim(chain([5] * 31), 64)) == 31, "a long copy pays for both changes"


def test_without_a_shape_change_cost_no_rows_are_preferred() -> None:
    budget = AdaptiveBudget(CostModel(StepCost({64: COSTS})), Calibration())
    for _ in range(EXPLORE_EVERY):
        budget.trim(chain([5] * 6), 64)
        budget.observe_accepted(Accepted((), (9,)))
    assert budget.preferred.rows == 0
