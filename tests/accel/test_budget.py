"""Budgets: rows with the most expected tokens per second, for one sequence and several; calibrated chances."""

import random
from functools import partial
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    FixedBudget,
    PreferredRows,
    context_tokens,
    packing_savings,
    trim_drafts,
)
from antiphon.accel.drafting.calibration import Calibration, RequestCalibration
from antiphon.accel.drafting.cost_model import CostModel, StepCost
from antiphon.accel.drafting.draft import (
    EMPTY,
    ROOT,
    Accepted,
    Draft,
    DrafterFactory,
    Tokens,
    chain,
    take_rows,
    without_probes,
)
from antiphon.accel.drafting.drafters import Nothing
from antiphon.accel.drafting.tree import reorder_depth_first
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


MARGIN = 1.03
STEP_COSTS = (
    StepCost({64: {1: 1.0, 64: 1.0}}),
    StepCost({64: {1: 1.0, 2: 1.4, 64: 8.0}}),
    StepCost({64: {1: 1.0, 2: 0.8, 4: 0.9, 5: 1.6, 8: 1.7, 9: 3.0, 64: 30.0}}),
    StepCost({64: {1: 1.0, 2: 1.8, 8: 1.9, 9: 3.5, 64: 20.0}}),
)


def random_draft(chance: random.Random, most: int = 40) -> Draft:
    """Return a random draft of at most ``most`` rows, some with probes; chances may be equal or rise along a path."""
    rows = chance.randint(0, most)
    probes = chance.choice((0, 0, chance.randint(0, rows)))
    parents, chances = [], list[float]()
    for row in range(rows):
        parents.append(chance.randint(ROOT, row - 1))
        above = 1.0 if parents[row] == ROOT else chances[parents[row]]
        share = chance.choice((0.5, 1.0, 1.1, chance.random()))
        chances.append(above * share if row < rows - probes else chance.random() / 5)
    return Draft(tuple(chance.randrange(9) for _ in range(rows)), tuple(parents), tuple(chances), probes)


def random_continuation(chance: random.Random, draft: Draft) -> list[int]:
    """Return three tokens, each of which follows the draft with a probability of about 0.8."""
    row, text = ROOT, list[int]()
    for _ in range(3):
        below = draft.children.get(row, {})
        text.append(chance.choice([*below]) if below and chance.random() < 0.8 else chance.randrange(9))
        row = below.get(text[-1], len(draft))
    return text


def expected_rows(draft: Draft, cost: StepCost, calibration: RequestCalibration) -> Draft:
    """Return the optimal rows of a single draft, computed directly from the rule."""
    costs = cost.curve(96, max(1 + len(draft), MIN_ROWS)).tolist()
    costs = list(accumulate(reversed(costs), min))[::-1]
    chances = calibration.calibrate(draft)
    order = sorted(range(len(chances)), key=chances.__getitem__, reverse=True)
    rates = rates_of([[chances[row]] for row in order], costs)
    kept = rates.index(max(rates)) if max(rates) > MARGIN * rates[0] else 0
    taken = order[:kept]
    if draft.num_probes:
        below = draft.probes_below
        groups = [below.get(ROOT, []), *([row, *below.get(row, ())] for row in order)]
        gains = [*chances, *draft.chances[len(chances) :]]
        probing = rates_of([[gains[row] for row in group] for group in groups], costs)[1:]
        if max(probing) > max(rates[kept], MARGIN * rates[0]):
            taken = [row for group in groups[: 1 + probing.index(max(probing))] for row in group]
    return take_rows(draft, sorted(taken))


def rates_of(groups: list[list[float]], costs: list[float]) -> list[float]:
    tokens, rows = accumulate(map(sum, groups), initial=1.0), accumulate(map(len, groups), initial=0)
    return [token / costs[count] for token, count in zip(tokens, rows, strict=True)]


@pytest.mark.parametrize("cost", STEP_COSTS, ids=["free", "line", "cheaper by two", "kinked"])
def test_a_single_sequence_gets_its_optimal_rows_in_thousands_of_drafts(cost: StepCost) -> None:
    chance = random.Random(5)
    budgets = [AdaptiveBudget(CostModel(cost, learns=False), Calibration()) for _ in range(2)]
    own = RequestCalibration(Calibration())
    drafted = probing = 0
    for _ in range(1500):
        draft = random_draft(chance)
        text = random_continuation(chance, draft)
        expected = expected_rows(draft, cost, own)
        assert budgets[0].trim(draft, 64) == expected
        assert trim_drafts([draft], [budgets[1]], [64]) == [reorder_depth_first(expected)]
        assert budgets[0].num_draft_tokens == budgets[1].num_draft_tokens
        for calibration in (own, budgets[0].calibration, budgets[1].calibration):
            calibration.observe(text)
        drafted, probing = drafted + len(expected), probing + expected.num_probes
    assert drafted > 1000
    assert probing > 50


def trim_jointly(drafts: list[Draft], cost: StepCost) -> list[Draft]:
    budgets: list[Budget] = [AdaptiveBudget(CostModel(cost, learns=False), Calibration()) for _ in drafts]
    return trim_drafts(drafts, budgets, [64] * len(drafts))


@given(seed=st.integers(0, 2**32 - 1))
def test_several_sequences_get_the_most_likely_rows_of_all_up_to_the_optimal_number(seed: int) -> None:
    chance = random.Random(seed)
    cost = StepCost({64: {1: 1.0, 8: 1.3, 64: 6.0}})
    drafts = [without_probes(random_draft(chance, 12)) for _ in range(5)]
    likely = [RequestCalibration(Calibration()).calibrate(draft) for draft in drafts]
    every = sorted((share for each in likely for share in each), reverse=True)
    curve = cost.curve(96, 5 + len(every)).tolist()
    rates = [(5 + sum(every[:count])) / curve[4 + count] for count in range(len(every) + 1)]
    best = max(range(len(rates)), key=rates.__getitem__)
    shared = trim_jointly(drafts, cost)
    assert sum(map(len, shared)) == (best if rates[best] > MARGIN * rates[0] else 0)
    for draft, own, kept in zip(drafts, likely, shared, strict=True):
        rows = sorted(range(len(own)), key=lambda row: -own[row])[: len(kept)]
        assert kept == reorder_depth_first(take_rows(draft, sorted(rows)))


def test_rows_of_fixed_budgets_are_always_verified_and_count_in_the_cost() -> None:
    cost = StepCost({64: {1: 1.0, 8: 1.0, 9: 8.0, 64: 80.0}})  # up to eight rows cost as much as one
    tree, guess = chain([1, 2, 3, 4, 5, 6, 7], [0.9] * 7), chain([8, 9], [0.8, 0.7])
    adaptive = AdaptiveBudget(CostModel(cost, learns=False), Calibration())
    assert trim_drafts([tree, guess], [FixedBudget(4), adaptive], [64, 64]) == [chain([1, 2, 3, 4], [0.9] * 4), guess]
    assert trim_drafts([tree, guess], [FixedBudget(6), adaptive], [64, 64]) == [
        chain([1, 2, 3, 4, 5, 6], [0.9] * 6),
        EMPTY,
    ]
    assert trim_drafts([tree, guess], [FixedBudget(1), FixedBudget(0)], [64, 64]) == [chain([1], [0.9]), EMPTY]
    assert trim_drafts([], [], []) == []


def test_a_forward_pass_packs_the_context_of_each_sequence_that_verifies_a_draft() -> None:
    row, drafting = {1: 1.0, 2: 1.0, 64: 1.0}, {1: 2.0, 2: 3.0, 64: 3.0}
    cost = StepCost({64: row, 1064: drafting}, packing=1 / 1000)
    drafts = [chain([1, 2], [0.1, 0.05]), chain([3, 4], [0.9, 0.8]), chain([5], [0.5])]
    budgets: list[Budget] = [AdaptiveBudget(CostModel(cost, learns=False), Calibration()) for _ in drafts]
    assert [len(draft) for draft in trim_drafts(drafts, budgets, [0, 0, 0])] == [2, 2, 1]
    assert [len(draft) for draft in trim_drafts(drafts, budgets, [300, 300, 2000])] == [0, 2, 0]
    assert context_tokens(CostModel(cost, learns=False), [300, 20]) == 320
    assert packing_savings(CostModel(cost, learns=False), [300, 20], [EMPTY, drafts[0]]) == pytest.approx(0.3)
