"""The budget keeps the rows that promise the most tokens per second, and learns what a drafter's chances are worth."""

import random
from typing import Any

import pytest
from torch import Tensor

from antiphon.accel.decoding.generation import Generation
from antiphon.accel.decoding.options import DecodingOptions
from antiphon.accel.decoding.request import prepare
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
from antiphon.accel.drafting.cost_model import FixedCostModel, OnlineCostModel, StepCost
from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted, Draft, DrafterFactory, Tokens, chain
from antiphon.accel.drafting.drafters import Blend, Nothing
from antiphon.accel.engines.torch.engine import engine_of, traits_of
from antiphon.accel.generate import generate, stream
from antiphon.accel.testing.drafters import OracleDrafter, WrongDrafter
from antiphon.accel.testing.tiny import tiny_model

FREE = StepCost({64: {1: 1.0, 64: 1.0}})
DEAR = StepCost({64: {1: 1.0, 2: 2.0, 64: 64.0}})
KINKED = StepCost({64: {1: 1.0, 2: 1.8, 8: 1.9, 9: 3.5, 64: 20.0}})
CHEAPER_BY_TWO = StepCost({64: {1: 1.0, 2: 0.76, 8: 0.97, 64: 3.1}})


def measured(cost: StepCost, calibration: Calibration | None = None) -> AdaptiveBudget:
    return AdaptiveBudget(FixedCostModel(cost), calibration or Calibration())


def tree(rows: int, seed: int) -> Draft:
    """Rows of chances that never rise down a path, in no order."""
    rng = random.Random(seed)
    parents = [rng.randrange(-1, row) for row in range(rows)]
    chances: list[float] = []
    for parent in parents:
        chances.append((1.0 if parent == ROOT else chances[parent]) * rng.uniform(0.2, 1.0))
    return Draft(tuple(range(rows)), tuple(parents), tuple(chances))


def test_nothing_is_drafted_where_nothing_pays() -> None:
    assert measured(DEAR).trim(chain([5, 6, 7], [0.9, 0.8, 0.7]), 64) == EMPTY


def test_every_row_is_verified_where_rows_are_free() -> None:
    for seed in range(5):
        draft = tree(40, seed)
        assert measured(FREE).trim(draft, 64) is draft


def test_rows_that_are_a_little_better_than_none_are_left_out() -> None:
    cost = StepCost({64: {1: 1.0, 2: 1.0, 64: 1.0}})
    assert len(measured(cost).trim(chain([5], [0.02]), 64)) == 0
    assert len(measured(cost).trim(chain([5], [0.2]), 64)) == 1


@pytest.mark.parametrize("seed", range(8))
def test_the_rows_kept_are_the_best_prefix_of_the_likeliest_and_whole_paths(seed: int) -> None:
    draft = tree(30, seed)
    kept = measured(KINKED).trim(draft, 64)
    curve = KINKED.curve(64, 31)
    chances = RequestCalibration(Calibration()).calibrate(draft)
    order = sorted(chances, reverse=True)
    rates = [(1 + sum(order[:rows])) / curve[rows] for rows in range(31)]
    best = max(range(31), key=rates.__getitem__)
    assert len(kept) == (best if rates[best] > 1.03 * rates[0] else 0)
    assert sorted(kept.tokens) == sorted(row for row in range(30) if chances[row] in order[: len(kept)])
    assert all(draft.parents[row] in (ROOT, *kept.tokens) for row in kept.tokens), "every parent is there"


def test_a_second_row_that_costs_nearly_a_step_is_drafted_only_with_those_that_come_free_with_it() -> None:
    assert len(measured(KINKED).trim(chain([5], [0.7]), 64)) == 0
    assert len(measured(KINKED).trim(chain(range(9), [0.97**row for row in range(1, 10)]), 64)) == 7


def test_in_a_forward_for_many_texts_a_row_costs_one_for_each() -> None:
    draft = chain(range(3), [0.5, 0.3, 0.2])
    steep = StepCost({64: {1: 1.0, 4: 1.1, 64: 16.0}})
    assert len(measured(steep).trim(draft, 64)) == 3
    budgets: list[Budget] = [measured(steep) for _ in range(8)]
    assert trim_drafts([draft] * 8, budgets, [64] * 8) == [EMPTY] * 8


def test_probes_are_paid_for_and_kept_or_dropped_together() -> None:
    asked = Draft((1, 2, 3, 4), (-1, 0, -1, 2), (0.8, 0.6, 0.1, 0.1), num_probes=2)
    assert measured(FREE).trim(asked, 64) is asked
    cost = StepCost({64: {1: 1.0, 3: 1.0, 5: 4.0, 64: 64.0}})
    assert measured(cost).trim(asked, 64) == Draft((1, 2), (-1, 0), (0.8, 0.6))


def test_the_drafter_is_asked_for_more_while_all_of_it_pays_and_for_less_when_little_does() -> None:
    budget = measured(FREE)
    assert budget.num_draft_tokens == INITIAL_ROWS
    budget.trim(chain(range(40), [1.0] * 40), 64)
    assert budget.num_draft_tokens == MAX_ROWS
    for _ in range(100):
        budget.trim(EMPTY, 64)
    assert budget.num_draft_tokens == MIN_ROWS


def test_a_plain_step_is_filled_up_where_more_rows_are_cheaper() -> None:
    budget = measured(CHEAPER_BY_TWO)
    assert budget.padding_rows(EMPTY, 64) == 1
    assert budget.padding_rows(chain([5]), 64) == 0
    assert len(budget.trim(chain([5], [0.2]), 64)) == 1, "better a guess than a pad"
    assert measured(StepCost({64: {1: 1.0, 2: 0.95, 64: 2.0}})).padding_rows(EMPTY, 64) == 0, "that is noise"


def steps_of(model: Any, cost: StepCost, **options: Any) -> tuple[list[int], list[Step]]:
    steps: list[Step] = []
    settings = {"max_new_tokens": 60, "do_sample": False, "eos_token_id": None} | options
    output = generate(model, [*range(40, 80)], on_step=steps.append, cost=cost, **settings)
    assert isinstance(output, Tensor)
    return output[0].tolist(), steps


def steps_within(budget: Budget, model: Any, drafter: DrafterFactory) -> list[Step]:
    """The steps of one request that has this budget."""
    request = prepare(model, [*range(40, 80)], max_new_tokens=60, do_sample=False, eos_token_id=None)
    options = DecodingOptions(drafter=drafter)
    generation = engine_of(model).lock.run(lambda: Generation(request, options=options))
    generation.text.budget = budget
    return list(generation.steps())


def test_where_a_change_of_rows_is_dear_a_step_keeps_as_many_as_the_last_one() -> None:
    cost = StepCost({64: {1: 1.0, 12: 1.2, 64: 8.0}}, shape_change=1.0)
    budget = AdaptiveBudget(OnlineCostModel(cost), Calibration())
    assert budget.padding_rows(EMPTY, 64) == 0, "no forward was before this one"
    budget.observe_time(12, 64, 1.2)
    assert budget.padding_rows(EMPTY, 64) == 11
    assert budget.padding_rows(chain([5] * 5), 64) == 6
    assert len(budget.trim(chain([5] * 20, [0.1] * 20), 64)) == 11, "rows up to the last one's cost nothing more"
    budget.observe_time(64, 64, 8.0)
    assert budget.padding_rows(EMPTY, 64) == 11, "to stay would cost more than to change, and 12 rows have become usual"


def test_without_a_cost_of_change_the_last_forward_means_nothing() -> None:
    budget = AdaptiveBudget(OnlineCostModel(KINKED), Calibration())
    before = budget.cost.next_seconds(64, 20)
    budget.observe_time(40, 64, KINKED.curve(64, 40)[-1])
    assert budget.cost.next_seconds(64, 20) == before == budget.cost.seconds(64, 20)


@pytest.mark.parametrize("family", ["llama", "gemma3", "bloom", "mamba2"])
def test_padding_changes_no_text_and_is_not_drafted(family: str) -> None:
    model = tiny_model(family)
    text, plain = steps_of(model, CHEAPER_BY_TWO, num_draft_tokens=0, drafter=Nothing)
    padded, steps = steps_of(model, CHEAPER_BY_TWO, drafter=Nothing)
    assert padded == text
    assert not any(step.drafted or step.accepted for step in steps)
    assert not any(step.padded for step in plain)
    pads = [0] + [1] * 58 + [0] if traits_of(model).level == "tree" else [0] * 60
    assert [step.padded for step in steps] == pads
    assert summarize(steps).drafted == 0


def test_a_liar_is_believed_less_and_less_and_an_oracle_always() -> None:
    cost = StepCost({64: {1: 1.0, 2: 1.4, 64: 8.0}})
    model = tiny_model()
    text, _ = steps_of(model, cost, num_draft_tokens=0)
    known = Calibration()
    lies = steps_within(measured(cost, known), model, lambda: WrongDrafter(text, 5))
    drafted = [step.drafted for step in lies]
    assert max(drafted[1:4]) == 5
    assert drafted[20:] == [0] * len(drafted[20:])
    again = steps_within(measured(cost, known), model, lambda: WrongDrafter(text, 5))
    assert sum(step.drafted for step in again) == 0, "the next request knows what it was worth"
    said, truths = steps_of(model, cost, drafter=lambda: OracleDrafter(text, 5))
    assert said == text
    assert len(truths) == 1 + 10


class Reformed(WrongDrafter):
    """Lies for forty tokens, then tells the truth."""

    def propose(self, context: Tokens, budget: int) -> Draft:
        """A lie or the truth, by how much has been said."""
        return super().propose(context, budget) if len(context) < 80 else OracleDrafter.propose(self, context, budget)


def test_a_drafter_that_begins_to_tell_the_truth_is_noticed_without_having_been_tried() -> None:
    cost = StepCost({64: {1: 1.0, 2: 1.4, 64: 8.0}})
    model = tiny_model()
    text, _ = steps_of(model, cost, num_draft_tokens=0, max_new_tokens=160)
    said, steps = steps_of(model, cost, drafter=lambda: Reformed(text, 5), max_new_tokens=160)
    assert said == text
    lied = [step.drafted for step in steps[:40]]
    assert sum(1 for drafted in lied if drafted) <= 10, "what does not pay is not tried again and again"
    assert summarize(steps[40:]).tokens_per_step > 2


def test_calibration_moves_a_lying_drafters_chances_towards_the_truth() -> None:
    rng = random.Random(0)
    calibration = RequestCalibration(Calibration())
    for _ in range(300):
        calibration.calibrate(chain([1, 2], [0.9, 0.8]))
        calibration.observe([1 if rng.random() < 0.3 else 9, 9])
    first, second = calibration.calibrate(chain([1, 2], [0.9, 0.8]))
    assert 0.15 < first < 0.45
    assert second < 0.2 * first
    assert calibration.calibrate(chain([1], [0.02])) == [0.02], "other chances are believed as before"


def test_rows_that_were_never_verified_are_judged_by_the_text() -> None:
    known = Calibration()
    calibration = RequestCalibration(known)
    calibration.calibrate(chain([1, 2, 3], [0.9, 0.8, 0.7]))
    for token in (1, 2, 8):  # plain steps, one token each
        calibration.observe([token])
    assert sum(known.trials) == pytest.approx(3, abs=0.01)
    assert sum(known.hits) == pytest.approx(2, abs=0.01)


def test_a_draft_that_is_judged_twice_before_the_text_goes_on_is_counted_once() -> None:
    known = [Calibration(), Calibration()]
    for times, calibration in enumerate(known, start=1):
        request = RequestCalibration(calibration)
        for _ in range(times):
            request.calibrate(chain([1, 2, 3]))
        request.observe([1, 9])
    assert sum(known[0].trials) > 0
    assert (known[0].trials, known[0].hits) == (known[1].trials, known[1].hits)


def test_a_child_is_never_likelier_than_its_parent() -> None:
    rng = random.Random(1)
    calibration = RequestCalibration(Calibration())
    for seed in range(50):
        draft = tree(30, seed)
        chances = calibration.calibrate(draft)
        assert all(own <= (chances[up] if up != ROOT else 1) for own, up in zip(chances, draft.parents, strict=True))
        calibration.observe([rng.randrange(30) for _ in range(3)])


def test_what_one_request_learns_of_a_drafter_begins_the_next_one_and_ends_with_the_model() -> None:
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


def test_a_number_fixes_the_rows_and_a_model_that_verifies_nothing_is_asked_for_none() -> None:
    trees, nothing = tiny_model(), tiny_model("mamba")
    assert engine_of(trees).budget(Blend(), 7) == FixedBudget(7)
    assert engine_of(nothing).budget(Blend(), None) == FixedBudget(0)
    assert FixedBudget(2).trim(chain([1, 2, 3]), 64) == chain([1, 2])
    assert engine_of(trees).budget(Blend(), 7).padding_rows(EMPTY, 64) == 0


def test_a_drafter_that_knows_nothing_of_the_budget_is_trimmed_all_the_same() -> None:
    class Lavish(OracleDrafter):
        """Ignores how many rows it was asked for."""

        def propose(self, context: Tokens, budget: int) -> Draft:
            return chain(self.text[len(context) :][:100])

    model = tiny_model()
    text, _ = steps_of(model, FREE, num_draft_tokens=0)
    said, steps = steps_of(model, FREE, drafter=lambda: Lavish(text, 0))
    assert said == text
    assert max(step.drafted for step in steps) <= MAX_ROWS


def test_the_cost_is_learned_from_real_steps() -> None:
    model = tiny_model()
    list(stream(model, [*range(40, 60)], max_new_tokens=30, do_sample=False, eos_token_id=None))
    budget = engine_of(model).budget(Blend(), None)
    assert isinstance(budget, AdaptiveBudget)
    assert isinstance(budget.cost, OnlineCostModel)
    assert any(budget.cost.correction(rows) != 1 for rows in (1, 2, 4, 8, 16, 32, 64))


def test_an_empty_draft_is_judged_by_nobody() -> None:
    budget = measured(FREE)
    assert budget.trim(EMPTY, 64) == EMPTY
    budget.observe_accepted(Accepted((), (1,)))
    assert sum(budget.calibration.prior.trials) == 0
