"""The model of step time: pauses, noise, and a machine that becomes slower."""

from random import Random

import pytest

from antiphon.integrations.vllm.step_times import StepTimes

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
