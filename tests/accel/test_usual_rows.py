"""Where a change of rows is dear, steps have a usual number of rows: the one that brings the most tokens per second."""

import pytest

from antiphon.accel.drafting.budget import FIRST, MOST, WIDE, Measured
from antiphon.accel.drafting.calibration import Calibration
from antiphon.accel.drafting.draft import EMPTY, Accepted, Draft, chain
from antiphon.accel.drafting.running_cost import RunningCost
from antiphon.accel.drafting.step_cost import StepCost
from antiphon.accel.drafting.usual import UsualRows

COSTS = {1: 1.0, 4: 1.2, 8: 1.4, 16: 1.9, 32: 3.0}
CHANGING = StepCost({64: COSTS}, change=0.4)


def taught(usual: UsualRows, held: int, steps: int = 40) -> UsualRows:
    """After so many steps, of each of which the text had the first ``held`` tokens of a chain of 30."""
    draft = chain([*range(5, 35)])
    for _ in range(steps):
        usual.look(COSTS, draft.chances)
        usual.learn(draft, draft.chances, [*range(5, 5 + held), 1])
    return usual


@pytest.mark.parametrize(("held", "rows"), [(0, 1), (2, 4), (6, 8), (13, 16), (30, 32)])
def test_the_usual_rows_are_those_of_which_the_text_had_the_most_for_their_cost(held: int, rows: int) -> None:
    assert taught(UsualRows(MOST), held).rows == rows


def test_before_any_step_is_known_the_first_draft_says_what_it_promises() -> None:
    usual = UsualRows(MOST)
    assert usual.rows == 0
    usual.look(COSTS, [0.95] * 7)
    assert usual.rows == 8
    empty = UsualRows(MOST)
    empty.look(COSTS, [])
    assert empty.rows == 1


def test_a_candidate_counts_by_its_chance_and_below_one_that_held() -> None:
    usual = UsualRows(MOST)
    draft = Draft((7, 8, 9), (-1, -1, 1), (0.2, 0.6, 0.5))
    usual.learn(draft, draft.chances, (8, 9, 4))
    usual.look({1: 1.0, 2: 1.9, 3: 2.5, 4: 2.51}, [])
    assert usual.rows == 3, "8 is the likeliest, and 9 the next; 7 was not said"


def test_what_pays_later_than_it_did_is_found_again() -> None:
    usual = taught(UsualRows(MOST), 0)
    assert taught(usual, 13, steps=100).rows == 16


def test_a_step_keeps_the_usual_rows_unless_another_number_pays_the_way_there_and_back() -> None:
    budget = Measured(RunningCost(CHANGING), Calibration(), taught(UsualRows(MOST), 6))
    budget.spent(8, 64, COSTS[8])
    assert len(budget.trim(chain([5] * 20, [0.1] * 20), 64)) == 7
    assert len(budget.trim(EMPTY, 64)) == 0
    assert budget.pads(EMPTY, 64) == 7
    assert len(budget.trim(chain([5] * 31), 64)) == 31, "a long copy is worth both changes"


def test_a_usual_step_asks_for_no_more_candidates_than_it_verifies_but_every_fourth_does() -> None:
    budget = Measured(RunningCost(CHANGING), Calibration(), taught(UsualRows(MOST), 13))
    asked = []
    for _ in range(2 * WIDE):
        asked.append(budget.rows)
        budget.trim(chain([5] * budget.rows), 64)
        budget.learn(Accepted((), (9,)))
    assert asked[0] == FIRST
    assert asked[1:WIDE] == [15] * (WIDE - 1)
    assert asked[WIDE] > 15
    assert asked[WIDE + 1 :] == [15] * (WIDE - 1)


def test_without_a_cost_of_change_no_rows_are_usual() -> None:
    budget = Measured(RunningCost(StepCost({64: COSTS})), Calibration())
    for _ in range(WIDE):
        budget.trim(chain([5] * 6), 64)
        budget.learn(Accepted((), (9,)))
    assert budget.usual.rows == 0
