"""The model of step time: irregular batch sizes, costs that increase in steps, pauses, and increasing load."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from antiphon.integrations.vllm.step_times import INITIAL_SLOPE, StepTimes

COUNTS = list(range(16, 216, 5))
Random(1).shuffle(COUNTS)


def learned(cost: Callable[[int], float], counts: list[int]) -> list[float]:
    times, noise = StepTimes(), Random(0)
    for rows in counts:
        times.observe(rows, cost(rows) * noise.uniform(0.9, 1.1))
    return times.seconds(256)


def test_rows_are_cheap_before_any_step() -> None:
    seconds = StepTimes().seconds(33)
    assert seconds[0] == pytest.approx(1)
    assert seconds[32] == pytest.approx(1 + 32 * INITIAL_SLOPE)


@pytest.mark.parametrize("each", [0.0, 0.0005, 0.002])
def test_the_cost_of_a_row_is_learned_from_forty_different_batch_sizes(each: float) -> None:
    seconds = learned(lambda rows: 0.02 + each * rows, COUNTS)
    wanted = (0.02 + each * 200) / (0.02 + each * 16)
    assert seconds[199] / seconds[15] == pytest.approx(wanted, rel=0.2)


def test_a_stair_is_learned_at_its_place() -> None:
    """Four rows cost as much as one, and five twice as much."""
    seconds = learned(lambda rows: 0.01 if rows <= 4 else 0.02, [1, 2, 3, 4, 5, 6, 7, 8] * 20)
    assert seconds[3] / seconds[0] == pytest.approx(1, rel=0.2)
    assert 1.6 < seconds[5] / seconds[2] < 2.4


def test_a_pause_of_the_machine_is_ignored() -> None:
    times = StepTimes()
    for rows in [1, 8] * 30:
        times.observe(rows, 0.01)
    before = times.seconds(8)
    times.observe(8, 5.0)
    assert times.seconds(8)[7] < 1.4 * before[7]


def test_a_machine_that_becomes_busier_is_tracked() -> None:
    times = StepTimes()
    for step in range(600):
        for rows in (4, 40):
            times.observe(rows, 0.01 if step < 300 else 0.01 + 0.001 * rows)
    assert times.seconds(40)[39] / times.seconds(4)[3] == pytest.approx(0.05 / 0.014, rel=0.1)


def test_step_times_are_positive() -> None:
    for cost in (lambda rows: 0.001 * rows, lambda rows: 1 / rows):
        assert min(learned(cost, [1, 2, 64, 128, *COUNTS])) > 0


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


def test_one_long_step_hardly_changes_the_cost_of_a_row() -> None:
    times = StepTimes()
    for rows in [20, 60] * 30:
        times.observe(rows, 0.03 + 0.0003 * rows)
    before = times.row_seconds()
    times.observe(100, 3.0)
    assert times.row_seconds() < 1.3 * before


def test_the_first_step_sets_the_scale() -> None:
    times = StepTimes()
    times.observe(41, 0.05)
    seconds = times.seconds(41)
    assert seconds[40] == pytest.approx(0.05)
    assert times.row_seconds() == pytest.approx(INITIAL_SLOPE * seconds[0], rel=0.01)
