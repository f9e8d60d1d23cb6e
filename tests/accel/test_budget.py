"""Budgets select the rows with the most expected tokens per second and calibrate the chances of a drafter."""

import random
from functools import partial
from typing import Any

import pytest

from antiphon.accel.decoding.model_request import ModelRequest, prepare
from antiphon.accel.decoding.options import DecodingOptions
from antiphon.accel.decoding.stats import Step, summarize
from antiphon.accel.drafting.budget import (
    EXPLORE_EVERY,
    INITIAL_ROWS,
    MAX_ROWS,
    MIN_ROWS,
    AdaptiveBudget,
    Budget,
)
from antiphon.accel.drafting.calibration import Calibration, RequestCalibration
from antiphon.accel.drafting.cost_model import CostModel, StepCost
from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted, Draft, DrafterFactory, Tokens, chain
from antiphon.accel.drafting.drafters import Nothing
from antiphon.accel.drafting.preferred_rows import PreferredRows
from antiphon.accel.engines.torch.engine import engine_of, traits_of
from antiphon.accel.generate import generate
from tests.accel.adversarial_drafters import OracleDrafter, WrongDrafter
from tests.families.table import tiny_model

FREE = StepCost({64: {1: 1.0, 64: 1.0}})
KINKED = StepCost({64: {1: 1.0, 2: 1.8, 8: 1.9, 9: 3.5, 64: 20.0}})
CHEAPER_BY_TWO = StepCost({64: {1: 1.0, 2: 0.76, 8: 0.97, 64: 3.1}})


def adaptive(cost: StepCost, calibration: Calibration | None = None) -> AdaptiveBudget:
    return AdaptiveBudget(CostModel(cost, learns=False), calibration or Calibration())


def random_tree(rows: int, seed: int) -> Draft:
    """Return a tree whose chances never rise along a path; its rows are not sorted by chance."""
    rng = random.Random(seed)
    parents = [rng.randrange(-1, row) for row in range(rows)]
    chances: list[float] = []
    for parent in parents:
        chances.append((1.0 if parent == ROOT else chances[parent]) * rng.uniform(0.2, 1.0))
    return Draft(tuple(range(rows)), tuple(parents), tuple(chances))


def test_rows_below_the_margin_are_dropped() -> None:
    cost = StepCost({64: {1: 1.0, 2: 1.0, 64: 1.0}})
    assert len(adaptive(cost).trim(chain([5], [0.02]), 64)) == 0
    assert len(adaptive(cost).trim(chain([5], [0.2]), 64)) == 1


def test_more_rows_are_requested_while_all_pay_and_fewer_when_few_do() -> None:
    budget = adaptive(FREE)
    assert budget.num_draft_tokens == INITIAL_ROWS
    budget.trim(chain(range(40), [1.0] * 40), 64)
    assert budget.num_draft_tokens == MAX_ROWS
    for _ in range(100):
        budget.trim(EMPTY, 64)
    assert budget.num_draft_tokens == MIN_ROWS


def steps_of(model: Any, cost: StepCost, **options: Any) -> tuple[list[int], list[Step]]:
    steps: list[Step] = []
    settings = {"max_new_tokens": 60, "do_sample": False, "eos_token_id": None} | options
    output: Any = generate(model, [*range(40, 80)], on_step=steps.append, cost=cost, **settings)
    return output[0].tolist(), steps


def steps_with_budget(budget: Budget, model: Any, drafter: DrafterFactory) -> list[Step]:
    """Return the steps of one request with this budget."""
    make = partial(ModelRequest, options=DecodingOptions(drafter=drafter))
    arguments: dict[str, Any] = {"max_new_tokens": 60, "do_sample": False, "eos_token_id": None}
    request = engine_of(model).lock.run(lambda: prepare(model, [*range(40, 80)], make, **arguments))
    request.budget = budget
    return list(request.steps())


def test_if_a_shape_change_is_expensive_a_step_keeps_the_rows_of_the_last_one() -> None:
    cost = StepCost({64: {1: 1.0, 12: 1.2, 64: 8.0}}, shape_change=1.0)
    budget = AdaptiveBudget(CostModel(cost), Calibration())
    assert budget.padding_rows(EMPTY, 64) == 0, "there was no forward pass before this one"
    budget.observe_time(12, 64, 1.2)
    assert budget.padding_rows(EMPTY, 64) == 11
    assert budget.padding_rows(chain([5] * 5), 64) == 6
    assert len(budget.trim(chain([5] * 20, [0.1] * 20), 64)) == 11, "rows up to those of the last forward pass are free"
    budget.observe_time(64, 64, 8.0)
    assert budget.padding_rows(EMPTY, 64) == 11, "staying costs more than changing; 12 rows are preferred"


@pytest.mark.parametrize("family", ["llama", "gemma3", "bloom", "mamba2"])
def test_padding_changes_no_text_and_is_not_counted_as_drafted(family: str) -> None:
    model = tiny_model(family)
    text, plain = steps_of(model, CHEAPER_BY_TWO, num_draft_tokens=0, drafter=Nothing)
    padded, steps = steps_of(model, CHEAPER_BY_TWO, drafter=Nothing)
    assert padded == text
    assert not any(step.drafted or step.accepted for step in steps)
    assert not any(step.padded for step in plain)
    pads = [0] + [1] * 58 + [0] if traits_of(model).level == "tree" else [0] * 60
    assert [step.padded for step in steps] == pads
    assert summarize(steps).drafted == 0


def test_the_speedup_compares_each_pass_with_a_plain_one_and_is_unknown_without_measured_costs() -> None:
    budget = AdaptiveBudget(CostModel(StepCost({64: {1: 1.0, 4: 2.0, 64: 2.0}})), Calibration())
    assert (budget.plain_share(1, 64), budget.plain_share(4, 64)) == (1.0, 0.5)
    assert adaptive(KINKED).plain_share(8, 64) == 0.0
    prefill = Step((1,), 0, 0, 7.0, prefilled=9)
    drafted, plain = Step((2, 3, 4), 3, 2, 2.5, plain_seconds=1.0), Step((5,), 0, 0, 1.0, plain_seconds=1.0)
    summary = summarize([prefill, drafted, plain])
    assert (summary.decoded_tokens, summary.tokens_per_second, summary.speedup) == (4, 4 / 3.5, 4 / 3.5)
    assert summarize([prefill, plain, plain]).speedup == 0.0, "nothing was drafted"
    assert summarize([prefill, drafted, Step((6,), 0, 0, 1.0)]).speedup == 0.0, "one step is unknown"


def test_a_wrong_drafter_loses_its_rows_and_an_oracle_keeps_them() -> None:
    cost = StepCost({64: {1: 1.0, 2: 1.4, 64: 8.0}})
    model = tiny_model()
    text, _ = steps_of(model, cost, num_draft_tokens=0)
    prior = Calibration()
    lies = steps_with_budget(adaptive(cost, prior), model, lambda: WrongDrafter(text, 5))
    drafted = [step.drafted for step in lies]
    assert max(drafted[1:4]) == 5
    assert drafted[20:] == [0] * len(drafted[20:])
    again = steps_with_budget(adaptive(cost, prior), model, lambda: WrongDrafter(text, 5))
    assert sum(step.drafted for step in again) == 0, "the next request starts from the calibration of this one"
    said, truths = steps_of(model, cost, drafter=lambda: OracleDrafter(text, 5))
    assert said == text
    assert len(truths) == 1 + 10


def test_calibration_moves_wrong_chances_towards_the_acceptance_rate() -> None:
    rng = random.Random(0)
    calibration = RequestCalibration(Calibration())
    for _ in range(300):
        calibration.calibrate(chain([1, 2], [0.9, 0.8]))
        calibration.observe([1 if rng.random() < 0.3 else 9, 9])
    first, second = calibration.calibrate(chain([1, 2], [0.9, 0.8]))
    assert 0.15 < first < 0.45
    assert second < 0.2 * first
    assert calibration.calibrate(chain([1], [0.02])) == [0.02], "the other bins are unchanged"


def test_a_draft_calibrated_twice_before_the_next_token_counts_once() -> None:
    prior = [Calibration(), Calibration()]
    for times, calibration in enumerate(prior, start=1):
        request = RequestCalibration(calibration)
        for _ in range(times):
            request.calibrate(chain([1, 2, 3]))
        request.observe([1, 9])
    assert sum(prior[0].trials) > 0
    assert (prior[0].trials, prior[0].hits) == (prior[1].trials, prior[1].hits)


def test_a_calibrated_child_never_exceeds_its_parent() -> None:
    rng = random.Random(1)
    calibration = RequestCalibration(Calibration())
    for seed in range(50):
        draft = random_tree(30, seed)
        chances = calibration.calibrate(draft)
        assert all(own <= (chances[up] if up != ROOT else 1) for own, up in zip(chances, draft.parents, strict=True))
        calibration.observe([rng.randrange(30) for _ in range(3)])


def test_a_draft_larger_than_requested_is_trimmed() -> None:
    class OversizedDrafter(OracleDrafter):
        """Ignores the budget."""

        def propose(self, context: Tokens, budget: int) -> Draft:
            return chain(self.text[len(context) :][:100])

    model = tiny_model()
    text, _ = steps_of(model, FREE, num_draft_tokens=0)
    said, steps = steps_of(model, FREE, drafter=lambda: OversizedDrafter(text, 0))
    assert said == text
    assert max(step.drafted for step in steps) <= MAX_ROWS


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
