"""The number of draft tokens of each request, chosen for the whole batch."""

import pytest

from antiphon.accel.drafting.draft import chain
from antiphon.accel.drafting.row_selection import ScoredDraft
from antiphon.integrations.vllm.step_times import StepTimes


def budget(row_ms: float, requests: int = 8) -> StepTimes:
    """Return a budget that has learned steps of 30 ms and this cost of each row."""
    made = StepTimes()
    for _ in range(60):
        for more in (0, 10, 40, 20):
            rows = requests + more
            made.observe(rows, 0.030 + 0.001 * row_ms * rows)
    return made


def draft(*chances: float) -> ScoredDraft:
    return ScoredDraft(chain(tuple(range(len(chances))), chances), list(chances))


def test_rows_that_cost_more_than_they_gain_are_cut() -> None:
    drafts = [draft(0.9, 0.8, 0.1, 0.05)] * 2 + [draft(0.02, 0.01)]
    assert budget(0.4).allocate(drafts, num_without_draft=5) == [2, 2, 0]
    assert budget(0.01).allocate(drafts, num_without_draft=5) == [4, 4, 2]


@pytest.mark.parametrize("requests", [1, 4, 16, 32])
def test_nothing_is_drafted_on_a_saturated_machine(requests: int) -> None:
    saturated = StepTimes()
    for _ in range(100):
        for rows in (requests, 2 * requests, 4 * requests):
            saturated.observe(rows, 0.01 * rows)
    assert saturated.allocate([draft(0.6, 0.4, 0.2)] * requests) == [0] * requests
