"""The number of draft tokens of each request, chosen for the whole batch from the measured times of steps."""

from random import Random

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


COUNTS = list(range(16, 216, 5))
Random(1).shuffle(COUNTS)


def test_a_pause_of_the_machine_is_ignored() -> None:
    times = StepTimes()
    for rows in [1, 8] * 30:
        times.observe(rows, 0.01)
    before = times.seconds(8)
    times.observe(8, 5.0)
    assert times.seconds(8)[7] < 1.4 * before[7]


def test_the_cost_of_a_row_stays_near_its_initial_estimate_if_only_the_machine_changes() -> None:
    """Steps take the same time for any number of rows but become slower, while the drafts become longer."""
    times, chance = StepTimes(), Random(0)
    slopes = []
    for step in range(400):
        rows = 20 + step // 10 + chance.randrange(30)
        times.observe(rows, 0.04 * (1 + step / 400) * chance.uniform(0.9, 1.1))
        slopes.append(times.row_seconds())
    assert max(slopes[50:]) < 0.04 * 0.01, "a line through all steps would find 0.02 of a step"


@pytest.mark.parametrize("row_ms", [0.2, 0.4, 1.0])
def test_the_cost_of_a_row_is_learned_from_noisy_steps(row_ms: float) -> None:
    times, chance = StepTimes(), Random(1)
    for _ in range(300):
        rows = 16 + chance.randrange(100)
        times.observe(rows, (30 + row_ms * rows) * chance.uniform(0.85, 1.15))
    assert times.row_seconds() == pytest.approx(row_ms, rel=0.2)
