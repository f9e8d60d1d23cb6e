"""Budgets select the rows with the most expected tokens per second and calibrate the chances of a drafter."""

import random
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from antiphon.accel.decoding.model_request import ModelRequest, prepare
from antiphon.accel.decoding.options import DecodingOptions
from antiphon.accel.decoding.stats import Step, summarize
from antiphon.accel.drafting.budget import (
    INITIAL_ROWS,
    MAX_ROWS,
    MIN_ROWS,
    AdaptiveBudget,
    Budget,
    FixedBudget,
    trim_drafts,
)
from antiphon.accel.drafting.calibration import Calibration, RequestCalibration
from antiphon.accel.drafting.cost_model import CostModel, StepCost
from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted, Draft, DrafterFactory, Tokens, chain
from antiphon.accel.drafting.drafters import Blend, Nothing
from antiphon.accel.engines.torch.engine import engine_of, traits_of
from antiphon.accel.generate import generate, stream
from tests.accel.adversarial_drafters import OracleDrafter, WrongDrafter
from tests.families.table import tiny_model

FREE = StepCost({64: {1: 1.0, 64: 1.0}})
EXPENSIVE = StepCost({64: {1: 1.0, 2: 2.0, 64: 64.0}})
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


def test_no_row_is_verified_if_none_pays() -> None:
    assert adaptive(EXPENSIVE).trim(chain([5, 6, 7], [0.9, 0.8, 0.7]), 64) == EMPTY


def test_every_row_is_verified_if_rows_are_free() -> None:
    for seed in range(5):
        draft = random_tree(40, seed)
        assert adaptive(FREE).trim(draft, 64) is draft


def test_rows_below_the_margin_are_dropped() -> None:
    cost = StepCost({64: {1: 1.0, 2: 1.0, 64: 1.0}})
    assert len(adaptive(cost).trim(chain([5], [0.02]), 64)) == 0
    assert len(adaptive(cost).trim(chain([5], [0.2]), 64)) == 1


@given(seed=st.integers(0, 2**32 - 1))
def test_the_selected_rows_are_the_best_prefix_by_chance_and_whole_paths(seed: int) -> None:
    draft = random_tree(30, seed)
    kept = adaptive(KINKED).trim(draft, 64)
    curve = KINKED.curve(64, 31)
    chances = RequestCalibration(Calibration()).calibrate(draft)
    order = sorted(chances, reverse=True)
    rates = [(1 + sum(order[:rows])) / curve[rows] for rows in range(31)]
    best = max(range(31), key=rates.__getitem__)
    assert len(kept) == (best if rates[best] > 1.03 * rates[0] else 0)
    assert sorted(kept.tokens) == sorted(row for row in range(30) if chances[row] in order[: len(kept)])
    assert all(draft.parents[row] in (ROOT, *kept.tokens) for row in kept.tokens), "every parent is kept"


def test_an_expensive_second_row_is_verified_only_together_with_the_free_ones_after_it() -> None:
    assert len(adaptive(KINKED).trim(chain([5], [0.7]), 64)) == 0
    assert len(adaptive(KINKED).trim(chain(range(9), [0.97**row for row in range(1, 10)]), 64)) == 7


def test_in_a_shared_forward_pass_the_rows_of_all_sequences_count() -> None:
    draft = chain(range(3), [0.5, 0.3, 0.2])
    steep = StepCost({64: {1: 1.0, 4: 1.1, 64: 16.0}})
    assert len(adaptive(steep).trim(draft, 64)) == 3
    budgets: list[Budget] = [adaptive(steep) for _ in range(8)]
    assert trim_drafts([draft] * 8, budgets, [64] * 8) == [EMPTY] * 8


def test_probes_count_as_rows_and_are_kept_or_dropped_together() -> None:
    asked = Draft((1, 2, 3, 4), (-1, 0, -1, 2), (0.8, 0.6, 0.1, 0.1), num_probes=2)
    assert adaptive(FREE).trim(asked, 64) is asked
    cost = StepCost({64: {1: 1.0, 3: 1.0, 5: 4.0, 64: 64.0}})
    assert adaptive(cost).trim(asked, 64) == Draft((1, 2), (-1, 0), (0.8, 0.6))


def test_more_rows_are_requested_while_all_pay_and_fewer_when_few_do() -> None:
    budget = adaptive(FREE)
    assert budget.num_draft_tokens == INITIAL_ROWS
    budget.trim(chain(range(40), [1.0] * 40), 64)
    assert budget.num_draft_tokens == MAX_ROWS
    for _ in range(100):
        budget.trim(EMPTY, 64)
    assert budget.num_draft_tokens == MIN_ROWS


def test_a_plain_step_is_padded_if_more_rows_are_cheaper() -> None:
    budget = adaptive(CHEAPER_BY_TWO)
    assert budget.padding_rows(EMPTY, 64) == 1
    assert budget.padding_rows(chain([5]), 64) == 0
    assert len(budget.trim(chain([5], [0.2]), 64)) == 1, "a candidate is better than a padding row"
    assert adaptive(StepCost({64: {1: 1.0, 2: 0.95, 64: 2.0}})).padding_rows(EMPTY, 64) == 0, "smaller gains are noise"


def steps_of(model: Any, cost: StepCost, **options: Any) -> tuple[list[int], list[Step]]:
    steps: list[Step] = []
    settings = {"max_new_tokens": 60, "do_sample": False, "eos_token_id": None} | options
    output = generate(model, [*range(40, 80)], on_step=steps.append, cost=cost, **settings)
    assert isinstance(output, Tensor)
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


def test_without_a_shape_change_cost_the_last_forward_pass_does_not_matter() -> None:
    budget = AdaptiveBudget(CostModel(KINKED), Calibration())
    before = budget.cost.next_seconds(64, 20)
    budget.observe_time(40, 64, KINKED.curve(64, 40)[-1])
    assert budget.cost.next_seconds(64, 20) == before == budget.cost.seconds(64, 20)


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


class LateTruthDrafter(WrongDrafter):
    """Drafts wrong tokens until the context has 80 tokens, then the right ones."""

    def propose(self, context: Tokens, budget: int) -> Draft:
        """Return a wrong draft for a short context, and a right one from 80 tokens on."""
        return super().propose(context, budget) if len(context) < 80 else OracleDrafter.propose(self, context, budget)


def test_a_drafter_that_becomes_right_is_noticed_without_verifying_its_rows() -> None:
    cost = StepCost({64: {1: 1.0, 2: 1.4, 64: 8.0}})
    model = tiny_model()
    text, _ = steps_of(model, cost, num_draft_tokens=0, max_new_tokens=160)
    said, steps = steps_of(model, cost, drafter=lambda: LateTruthDrafter(text, 5), max_new_tokens=160)
    assert said == text
    lied = [step.drafted for step in steps[:40]]
    assert sum(1 for drafted in lied if drafted) <= 10, "a draft that does not pay is not verified repeatedly"
    assert summarize(steps[40:]).tokens_per_step > 2


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


def test_unverified_rows_are_calibrated_by_the_text() -> None:
    prior = Calibration()
    calibration = RequestCalibration(prior)
    calibration.calibrate(chain([1, 2, 3], [0.9, 0.8, 0.7]))
    for token in (1, 2, 8):  # three steps that emit one token each
        calibration.observe([token])
    assert sum(prior.trials) == pytest.approx(3, abs=0.01)
    assert sum(prior.hits) == pytest.approx(2, abs=0.01)


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


def test_requests_to_one_engine_share_costs_and_the_prior_of_their_drafter() -> None:
    model = tiny_model()
    engine = engine_of(model)
    first, second = (engine.budget(Blend(), None) for _ in range(2))
    other = engine.budget(Nothing(), None)
    assert isinstance(first, AdaptiveBudget)
    assert isinstance(second, AdaptiveBudget)
    assert isinstance(other, AdaptiveBudget)
    assert first.calibration.prior is second.calibration.prior is not other.calibration.prior
    assert first.cost is second.cost is other.cost
    assert first.calibration is not second.calibration


def test_a_number_fixes_the_budget_and_a_model_without_verification_gets_zero() -> None:
    trees, nothing = tiny_model(), tiny_model("mamba")
    assert engine_of(trees).budget(Blend(), 7) == FixedBudget(7)
    assert engine_of(nothing).budget(Blend(), None) == FixedBudget(0)
    assert FixedBudget(2).trim(chain([1, 2, 3]), 64) == chain([1, 2])
    assert engine_of(trees).budget(Blend(), 7).padding_rows(EMPTY, 64) == 0


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


def test_the_cost_model_learns_from_real_steps() -> None:
    model = tiny_model()
    list(stream(model, [*range(40, 60)], max_new_tokens=30, do_sample=False, eos_token_id=None))
    budget = engine_of(model).budget(Blend(), None)
    assert isinstance(budget, AdaptiveBudget)
    assert budget.cost.learns
    assert any(budget.cost.correction(rows) != 1 for rows in (1, 2, 4, 8, 16, 32, 64))


def test_an_empty_draft_is_not_counted() -> None:
    budget = adaptive(FREE)
    assert budget.trim(EMPTY, 64) == EMPTY
    budget.observe_accepted(Accepted((), (1,)))
    assert sum(budget.calibration.prior.trials) == 0
