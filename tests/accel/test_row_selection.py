"""The rows of several drafts compete for one forward; for one draft alone they are what its own budget trims to."""

import random
from itertools import accumulate

import pytest

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
from antiphon.accel.drafting.cost_model import FixedCostModel, StepCost
from antiphon.accel.drafting.draft import EMPTY, ROOT, Draft, chain, take_rows, without_probes
from antiphon.accel.drafting.row_selection import ScoredDraft, select_rows
from antiphon.accel.drafting.tree import reorder_depth_first

MARGIN = 1.03
COSTS = (
    StepCost({64: {1: 1.0, 64: 1.0}}),
    StepCost({64: {1: 1.0, 2: 1.4, 64: 8.0}}),
    StepCost({64: {1: 1.0, 2: 0.8, 4: 0.9, 5: 1.6, 8: 1.7, 9: 3.0, 64: 30.0}}),
    StepCost({64: {1: 1.0, 2: 1.8, 8: 1.9, 9: 3.5, 64: 20.0}}),
)


def bush(chance: random.Random, most: int = 40) -> Draft:
    """A draft of up to so many rows, with ties, chances that rise down a path here and there, and often probes."""
    rows = chance.randint(0, most)
    probes = chance.choice((0, 0, chance.randint(0, rows)))
    parents, chances = [], list[float]()
    for row in range(rows):
        parents.append(chance.randint(ROOT, row - 1))
        above = 1.0 if parents[row] == ROOT else chances[parents[row]]
        share = chance.choice((0.5, 1.0, 1.1, chance.random()))
        chances.append(above * share if row < rows - probes else chance.random() / 5)
    return Draft(tuple(chance.randrange(9) for _ in range(rows)), tuple(parents), tuple(chances), probes)


def said(chance: random.Random, draft: Draft) -> list[int]:
    """Three tokens that mostly follow the draft."""
    row, text = ROOT, list[int]()
    for _ in range(3):
        below = draft.children.get(row, {})
        text.append(chance.choice([*below]) if below and chance.random() < 0.8 else chance.randrange(9))
        row = below.get(text[-1], len(draft))
    return text


def alone(draft: Draft, cost: StepCost, calibration: RequestCalibration) -> Draft:
    """What one text's budget decides: the rule written out for a single draft."""
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
def test_one_text_gets_what_is_best_for_it_alone_in_thousands_of_drafts(cost: StepCost) -> None:
    chance = random.Random(5)
    budgets = [AdaptiveBudget(FixedCostModel(cost), Calibration()) for _ in range(2)]
    own = RequestCalibration(Calibration())
    drafted = probing = 0
    for _ in range(1500):
        draft = bush(chance)
        text = said(chance, draft)
        expected = alone(draft, cost, own)
        assert budgets[0].trim(draft, 64) == expected
        assert trim_drafts([draft], [budgets[1]], [64]) == [reorder_depth_first(expected)]
        assert budgets[0].num_draft_tokens == budgets[1].num_draft_tokens
        for calibration in (own, budgets[0].calibration, budgets[1].calibration):
            calibration.observe(text)
        drafted, probing = drafted + len(expected), probing + expected.num_probes
    assert drafted > 1000
    assert probing > 50


def joint(drafts: list[Draft], cost: StepCost) -> list[Draft]:
    budgets: list[Budget] = [AdaptiveBudget(FixedCostModel(cost), Calibration()) for _ in drafts]
    return trim_drafts(drafts, budgets, [64] * len(drafts))


@pytest.mark.parametrize("seed", range(12))
def test_of_several_texts_the_likeliest_rows_of_all_are_taken_to_the_best_number(seed: int) -> None:
    chance = random.Random(seed)
    cost = StepCost({64: {1: 1.0, 8: 1.3, 64: 6.0}})
    drafts = [without_probes(bush(chance, 12)) for _ in range(5)]
    likely = [RequestCalibration(Calibration()).calibrate(draft) for draft in drafts]
    every = sorted((share for each in likely for share in each), reverse=True)
    curve = cost.curve(96, 5 + len(every)).tolist()
    rates = [(5 + sum(every[:count])) / curve[4 + count] for count in range(len(every) + 1)]
    best = max(range(len(rates)), key=rates.__getitem__)
    shared = joint(drafts, cost)
    assert sum(map(len, shared)) == (best if rates[best] > MARGIN * rates[0] else 0)
    for draft, own, kept in zip(drafts, likely, shared, strict=True):
        rows = sorted(range(len(own)), key=lambda row: -own[row])[: len(kept)]
        assert kept == reorder_depth_first(take_rows(draft, sorted(rows)))


def test_a_likely_draft_takes_the_rows_that_an_unlikely_one_leaves() -> None:
    cost = StepCost({64: {1: 1.0, 6: 1.05, 7: 4.0, 64: 60.0}})  # four rows beside two roots, and then no more
    likely, unlikely = chain([1, 2, 3, 4, 5], [0.9] * 5), chain([6, 7, 8, 9], [0.3, 0.25, 0.2, 0.15])
    assert [len(draft) for draft in joint([likely, unlikely], cost)] == [4, 0]
    assert [len(draft) for draft in joint([unlikely, unlikely], cost)] == [2, 2]


def test_a_row_counts_for_itself_and_not_for_every_text() -> None:
    """A forward of several texts is ragged: one text's rows do not lengthen the others."""
    cost = StepCost({64: {1: 1.0, 12: 1.1, 13: 9.0, 64: 90.0}})
    drafts = [chain([1, 2, 3, 4], [0.9] * 4), *[EMPTY] * 7]
    assert [len(draft) for draft in joint(drafts, cost)] == [4, *[0] * 7]


def test_probes_are_kept_of_those_drafts_where_they_pay() -> None:
    cost = StepCost({64: {1: 1.0, 6: 1.0, 64: 60.0}})
    worthless = Draft((1, 2), (ROOT, ROOT), (0.9, 0.001), num_probes=1)
    worthwhile = Draft((1, 2), (ROOT, 0), (0.2, 0.8), num_probes=1)
    assert joint([worthless, worthwhile], cost) == [worthless, worthwhile], "there is room for all"
    tight = StepCost({64: {1: 1.0, 3: 1.0, 4: 1.1, 5: 1.2, 6: 3.0, 64: 60.0}})
    assert joint([worthless, worthwhile], tight) == [without_probes(worthless), worthwhile]


def test_fixed_rows_are_verified_in_any_case_and_are_part_of_the_price() -> None:
    cost = StepCost({64: {1: 1.0, 8: 1.0, 9: 8.0, 64: 80.0}})  # eight rows are free
    tree, guess = chain([1, 2, 3, 4, 5, 6, 7], [0.9] * 7), chain([8, 9], [0.8, 0.7])
    measured = AdaptiveBudget(FixedCostModel(cost), Calibration())
    assert trim_drafts([tree, guess], [FixedBudget(4), measured], [64, 64]) == [chain([1, 2, 3, 4], [0.9] * 4), guess]
    assert trim_drafts([tree, guess], [FixedBudget(6), measured], [64, 64]) == [
        chain([1, 2, 3, 4, 5, 6], [0.9] * 6),
        EMPTY,
    ]
    assert trim_drafts([tree, guess], [FixedBudget(1), FixedBudget(0)], [64, 64]) == [chain([1], [0.9]), EMPTY]
    assert trim_drafts([], [], []) == []


def rate_of(offers: list[ScoredDraft], taken: list[list[int]], costs: list[float], prices: list[float]) -> float:
    """Tokens per second of these rows."""
    tokens = len(offers) + sum(offer.chances[row] for offer, rows in zip(offers, taken, strict=True) for row in rows)
    seconds = costs[sum(map(len, taken))] + sum(price for price, rows in zip(prices, taken, strict=True) if rows)
    return tokens / seconds


@pytest.mark.parametrize("seed", range(8))
def test_the_first_row_of_a_text_has_to_earn_its_price(seed: int) -> None:
    """Of all ways to take the likeliest rows of all texts the best one, prices included."""
    chance, gained = random.Random(seed), 0.0
    for _ in range(60):
        offers = [ScoredDraft(draft := without_probes(bush(chance, 8)), list(draft.chances)) for _ in range(4)]
        prices = [chance.random() for _ in offers]
        costs = StepCost({64: {1: 2.0, 64: 8.0}}).curve(64, 40).tolist()
        every = chain_of(offers)
        rates = [
            rate_of(offers, [[row for at, row in every[:count] if at == one] for one in range(4)], costs, prices)
            for count in range(len(every) + 1)
        ]
        naive, ours = (select_rows(offers, costs, 4.0, asked) for asked in ([], prices))
        found = rate_of(offers, ours, costs, prices)
        assert found == pytest.approx(max(rates) if max(rates) > MARGIN * rates[0] else rates[0])
        gained += found - rate_of(offers, naive, costs, prices)
    assert gained > 0


def chain_of(offers: list[ScoredDraft]) -> list[tuple[int, int]]:
    """The candidates of all offers, each with its offer, the likeliest first."""
    every = [(-share, at, row) for at, offer in enumerate(offers) for row, share in enumerate(offer.chances)]
    return [(at, row) for _, at, row in sorted(every)]


def test_a_forward_packs_the_context_of_each_text_that_verifies_a_draft() -> None:
    row, drafting = {1: 1.0, 2: 1.0, 64: 1.0}, {1: 2.0, 2: 3.0, 64: 3.0}
    cost = StepCost({64: row, 1064: drafting}, packing=1 / 1000)
    drafts = [chain([1, 2], [0.1, 0.05]), chain([3, 4], [0.9, 0.8]), chain([5], [0.5])]
    budgets: list[Budget] = [AdaptiveBudget(FixedCostModel(cost), Calibration()) for _ in drafts]
    assert [len(draft) for draft in trim_drafts(drafts, budgets, [0, 0, 0])] == [2, 2, 1]
    assert [len(draft) for draft in trim_drafts(drafts, budgets, [300, 300, 2000])] == [0, 2, 0]
    assert context_tokens(FixedCostModel(cost), [300, 20]) == 320
    assert packing_savings(FixedCostModel(cost), [300, 20], [EMPTY, drafts[0]]) == pytest.approx(0.3)


def test_the_longest_context_decides_what_a_forward_costs() -> None:
    cost = StepCost({64: {1: 1.0, 64: 1.0}, 1088: {1: 1.0, 64: 65.0}})
    drafts = [chain([1, 2], [0.3, 0.2])] * 2
    budgets: list[Budget] = [AdaptiveBudget(FixedCostModel(cost), Calibration()) for _ in drafts]
    assert [len(draft) for draft in trim_drafts(drafts, budgets, [0, 0])] == [2, 2]
    assert [len(draft) for draft in trim_drafts(drafts, budgets, [0, 1088])] == [0, 0]
