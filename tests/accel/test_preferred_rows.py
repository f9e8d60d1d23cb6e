"""Where a change of rows is dear, steps have a usual number of rows: the one that brings the most tokens per second."""

import pytest

from antiphon.accel.drafting.budget import EXPLORE_EVERY, INITIAL_ROWS, MAX_ROWS, AdaptiveBudget
from antiphon.accel.drafting.calibration import Calibration
from antiphon.accel.drafting.cost_model import OnlineCostModel, StepCost
from antiphon.accel.drafting.draft import EMPTY, Accepted, Draft, chain
from antiphon.accel.drafting.preferred_rows import PreferredRows

COSTS = {1: 1.0, 4: 1.2, 8: 1.4, 16: 1.9, 32: 3.0}
CHANGING = StepCost({64: COSTS}, shape_change=0.4)


def taught(usual: PreferredRows, held: int, steps: int = 40) -> PreferredRows:
    """After so many steps, of each of which the text had the first ``held`` tokens of a chain of 30."""
    draft = chain([*range(5, 35)])
    for _ in range(steps):
        usual.update(COSTS, draft.chances)
        usual.observe(draft, draft.chances, [*range(5, 5 + held), 1])
    return usual


@pytest.mark.parametrize(("held", "rows"), [(0, 1), (2, 4), (6, 8), (13, 16), (30, 32)])
def test_the_usual_rows_are_those_of_which_the_text_had_the_most_for_their_cost(held: int, rows: int) -> None:
    assert taught(PreferredRows(MAX_ROWS), held).rows == rows


def test_before_any_step_is_known_the_first_draft_says_what_it_promises() -> None:
    usual = PreferredRows(MAX_ROWS)
    assert usual.rows == 0
    usual.update(COSTS, [0.95] * 7)
    assert usual.rows == 8
    empty = PreferredRows(MAX_ROWS)
    empty.update(COSTS, [])
    assert empty.rows == 1


def test_a_candidate_counts_by_its_chance_and_below_one_that_held() -> None:
    usual = PreferredRows(MAX_ROWS)
    draft = Draft((7, 8, 9), (-1, -1, 1), (0.2, 0.6, 0.5))
    usual.observe(draft, draft.chances, (8, 9, 4))
    usual.update({1: 1.0, 2: 1.9, 3: 2.5, 4: 2.51}, [])
    assert usual.rows == 3, "8 is the likeliest, and 9 the next; 7 was not said"


def test_what_pays_later_than_it_did_is_found_again() -> None:
    usual = taught(PreferredRows(MAX_ROWS), 0)
    assert taught(usual, 13, steps=100).rows == 16


def test_a_step_keeps_the_usual_rows_unless_another_number_pays_the_way_there_and_back() -> None:
    budget = AdaptiveBudget(OnlineCostModel(CHANGING), Calibration(), taught(PreferredRows(MAX_ROWS), 6))
    budget.observe_time(8, 64, COSTS[8])
    assert len(budget.trim(chain([5] * 20, [0.1] * 20), 64)) == 7
    assert len(budget.trim(EMPTY, 64)) == 0
    assert budget.padding_rows(EMPTY, 64) == 7
    assert len(budget.trim(chain([5] * 31), 64)) == 31, "a long copy is worth both changes"


def test_a_usual_step_asks_for_no_more_candidates_than_it_verifies_but_every_fourth_does() -> None:
    budget = AdaptiveBudget(OnlineCostModel(CHANGING), Calibration(), taught(PreferredRows(MAX_ROWS), 13))
    asked = []
    for _ in range(2 * EXPLORE_EVERY):
        asked.append(budget.num_draft_tokens)
        budget.trim(chain([5] * budget.num_draft_tokens), 64)
        budget.observe_accepted(Accepted((), (9,)))
    assert asked[0] == INITIAL_ROWS
    assert asked[1:EXPLORE_EVERY] == [15] * (EXPLORE_EVERY - 1)
    assert asked[EXPLORE_EVERY] > 15
    assert asked[EXPLORE_EVERY + 1 :] == [15] * (EXPLORE_EVERY - 1)


def test_without_a_cost_of_change_no_rows_are_usual() -> None:
    budget = AdaptiveBudget(OnlineCostModel(StepCost({64: COSTS})), Calibration())
    for _ in range(EXPLORE_EVERY):
        budget.trim(chain([5] * 6), 64)
        budget.observe_accepted(Accepted((), (9,)))
    assert budget.preferred.rows == 0
