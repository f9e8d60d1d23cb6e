"""Row selection: the rows of several drafts compete for one forward pass; a single draft is trimmed alone."""

import random
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.accel.drafting.budget import (
    MIN_ROWS,
    AdaptiveBudget,
    Budget,
    FixedBudget,
    context_tokens,
    packing_savings,
    trim_drafts,
)
from antiphon.accel.drafting.calibration import Calibration, RequestCalibration
from antiphon.accel.drafting.cost_model import CostModel, StepCost
from antiphon.accel.drafting.draft import EMPTY, ROOT, Draft, chain, take_rows, without_probes
from antiphon.accel.drafting.tree import reorder_depth_first

MARGIN = 1.03
COSTS = (
    StepCost({64: {1: 1.0, 64: 1.0}}),
    StepCost({64: {1: 1.0, 2: 1.4, 64: 8.0}}),
    StepCost({64: {1: 1.0, 2: 0.8, 4: 0.9, 5: 1.6, 8: 1.7, 9: 3.0, 64: 30.0}}),
    StepCost({64: {1: 1.0, 2: 1.8, 8: 1.9, 9: 3.5, 64: 20.0}}),
)


def random_tree(chance: random.Random, most: int = 40) -> Draft:
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


@pytest.mark.parametrize("cost", COSTS, ids=["free", "line", "cheaper by two", "kinked"])
def test_a_single_sequence_gets_its_optimal_rows_in_thousands_of_drafts(cost: StepCost) -> None:
    chance = random.Random(5)
    budgets = [AdaptiveBudget(CostModel(cost, learns=False), Calibration()) for _ in range(2)]
    own = RequestCalibration(Calibration())
    drafted = probing = 0
    for _ in range(1500):
        draft = random_tree(chance)
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
    drafts = [without_probes(random_tree(chance, 12)) for _ in range(5)]
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
