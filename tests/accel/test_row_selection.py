"""Row selection: the rows of several drafts compete for one forward pass; a single draft is trimmed alone."""

import random
from itertools import accumulate

import pytest
from hypothesis import given, settings
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
from antiphon.accel.drafting.row_selection import ScoredDraft, select_rows
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


def test_a_likely_draft_gets_the_rows_that_an_unlikely_one_does_not_use() -> None:
    cost = StepCost({64: {1: 1.0, 6: 1.05, 7: 4.0, 64: 60.0}})  # two roots and four rows are cheap
    likely, unlikely = chain([1, 2, 3, 4, 5], [0.9] * 5), chain([6, 7, 8, 9], [0.3, 0.25, 0.2, 0.15])
    assert [len(draft) for draft in trim_jointly([likely, unlikely], cost)] == [4, 0]
    assert [len(draft) for draft in trim_jointly([unlikely, unlikely], cost)] == [2, 2]


def test_a_row_counts_once_and_not_for_every_sequence() -> None:
    """In a shared forward pass each sequence has its own number of rows; none is padded to the longest."""
    cost = StepCost({64: {1: 1.0, 12: 1.1, 13: 9.0, 64: 90.0}})
    drafts = [chain([1, 2, 3, 4], [0.9] * 4), *[EMPTY] * 7]
    assert [len(draft) for draft in trim_jointly(drafts, cost)] == [4, *[0] * 7]


def test_probes_are_kept_for_those_drafts_for_which_they_pay() -> None:
    cost = StepCost({64: {1: 1.0, 6: 1.0, 64: 60.0}})
    worthless = Draft((1, 2), (ROOT, ROOT), (0.9, 0.001), num_probes=1)
    worthwhile = Draft((1, 2), (ROOT, 0), (0.2, 0.8), num_probes=1)
    assert trim_jointly([worthless, worthwhile], cost) == [worthless, worthwhile], "all rows are cheap"
    tight = StepCost({64: {1: 1.0, 3: 1.0, 4: 1.1, 5: 1.2, 6: 3.0, 64: 60.0}})
    assert trim_jointly([worthless, worthwhile], tight) == [without_probes(worthless), worthwhile]


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


def tokens_per_second(
    scored: list[ScoredDraft], taken: list[list[int]], costs: list[float], first_row_costs: list[float]
) -> float:
    """Return the expected tokens per second if the rows ``taken`` of each draft are verified."""
    tokens = len(scored) + sum(each.chances[row] for each, rows in zip(scored, taken, strict=True) for row in rows)
    seconds = costs[sum(map(len, taken))] + sum(
        first_row_cost for first_row_cost, rows in zip(first_row_costs, taken, strict=True) if rows
    )
    return tokens / seconds


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_first_row_of_a_sequence_has_to_pay_its_extra_cost(seed: int) -> None:
    """With all candidates sorted by chance, the selected ones are the prefix with the most tokens per second."""
    chance, gained = random.Random(seed), 0.0
    for _ in range(60):
        scored = [ScoredDraft(draft := without_probes(random_tree(chance, 8)), list(draft.chances)) for _ in range(4)]
        first_row_costs = [chance.random() for _ in scored]
        costs = StepCost({64: {1: 2.0, 64: 8.0}}).curve(64, 40).tolist()
        every = sorted_candidates(scored)
        rates = [
            tokens_per_second(
                scored, [[row for at, row in every[:count] if at == one] for one in range(4)], costs, first_row_costs
            )
            for count in range(len(every) + 1)
        ]
        naive, ours = (select_rows(scored, costs, 4.0, asked) for asked in ([], first_row_costs))
        found = tokens_per_second(scored, ours, costs, first_row_costs)
        assert found == pytest.approx(max(rates) if max(rates) > MARGIN * rates[0] else rates[0])
        gained += found - tokens_per_second(scored, naive, costs, first_row_costs)
    assert gained > 0


def sorted_candidates(scored: list[ScoredDraft]) -> list[tuple[int, int]]:
    """Return (draft, row) of all candidates, most likely first."""
    every = [(-share, at, row) for at, each in enumerate(scored) for row, share in enumerate(each.chances)]
    return [(at, row) for _, at, row in sorted(every)]


def test_a_forward_pass_packs_the_context_of_each_sequence_that_verifies_a_draft() -> None:
    row, drafting = {1: 1.0, 2: 1.0, 64: 1.0}, {1: 2.0, 2: 3.0, 64: 3.0}
    cost = StepCost({64: row, 1064: drafting}, packing=1 / 1000)
    drafts = [chain([1, 2], [0.1, 0.05]), chain([3, 4], [0.9, 0.8]), chain([5], [0.5])]
    budgets: list[Budget] = [AdaptiveBudget(CostModel(cost, learns=False), Calibration()) for _ in drafts]
    assert [len(draft) for draft in trim_drafts(drafts, budgets, [0, 0, 0])] == [2, 2, 1]
    assert [len(draft) for draft in trim_drafts(drafts, budgets, [300, 300, 2000])] == [0, 2, 0]
    assert context_tokens(CostModel(cost, learns=False), [300, 20]) == 320
    assert packing_savings(CostModel(cost, learns=False), [300, 20], [EMPTY, drafts[0]]) == pytest.approx(0.3)


def test_the_longest_context_determines_the_cost_of_a_forward_pass() -> None:
    cost = StepCost({64: {1: 1.0, 64: 1.0}, 1088: {1: 1.0, 64: 65.0}})
    drafts = [chain([1, 2], [0.3, 0.2])] * 2
    budgets: list[Budget] = [AdaptiveBudget(CostModel(cost, learns=False), Calibration()) for _ in drafts]
    assert [len(draft) for draft in trim_drafts(drafts, budgets, [0, 0])] == [2, 2]
    assert [len(draft) for draft in trim_drafts(drafts, budgets, [0, 1088])] == [0, 0]
