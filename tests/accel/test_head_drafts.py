"""A head's guesses among the drafts of others: chances by agreement, and when a pass is worth its time."""

import pytest
import torch

from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted, Draft
from antiphon.accel.drafting.drafters.head import EXPLORE_EVERY, MAX_DEPTH, Head, HeadStats, HiddenStates
from antiphon.accel.drafting.drafters.head_tree import HeadTree
from tests.accel.adversarial_heads import AdversarialHead

TREE = Draft((5, 6, 7), (ROOT, ROOT, 0), (0.6, 0.2, 0.54))


def test_a_token_of_both_drafters_is_more_likely_and_a_token_of_one_is_less_likely() -> None:
    tree = HeadTree(TREE)
    first, above = tree.add(ROOT, [(5, 0.7)])
    last, given = tree.add(first, [(8, 0.5)])
    draft = tree.draft()
    assert (first, last, draft.tokens, draft.parents) == (0, 3, (5, 6, 7, 8), (ROOT, ROOT, 0, 0))
    agreed = 0.7 / (0.7 + 0.2 * 0.3 + 0.2 * 0.3)  # the head's, the other token's, and all unknown tokens' weights
    assert (above, given) == pytest.approx((agreed, 0.05 / (0.05 + 0.45 + 0.05)))
    assert draft.chances == pytest.approx((agreed, agreed * 0.06 / 0.7, agreed * 0.45 / 0.55, agreed * given))
    assert tree.coverage(ROOT, 3) == pytest.approx((agreed * 0.76 / 0.7, agreed * 0.5 / 0.55, 0.0))
    assert tree.coverage(first, 1) == pytest.approx((0.5 / 0.55,))


def test_chances_that_add_up_to_more_than_one_remain_chances() -> None:
    tree = HeadTree(TREE)
    tree.add(ROOT, [(6, 1.0), (9, 0.9), (6, 0.8)])
    chances = tree.draft().chances
    assert all(0 < chance < 1 for chance in chances)
    assert sum(chances[row] for row in (0, 1, 3)) < 1


@pytest.mark.parametrize(("chances", "runs"), [((0.99,), True), ((0.99,) * 8, False)])
def test_a_pass_runs_if_those_after_it_go_on_where_copying_ends(chances: tuple[float, ...], runs: bool) -> None:
    head = AdversarialHead("wrong")
    head.stats = HeadStats(is_timed=False)  # type: ignore[assignment]
    head.stats.pass_seconds, head.stats.step_seconds, head.stats.step_tokens = 0.08, 1.0, 2.0
    part = Head(head)
    part.connect(lambda: [HiddenStates(0, (torch.zeros(2, 2),))], lambda function: function())
    part.begin((1, 2, 3), ())
    copied = Draft((5,) * len(chances), tuple(range(-1, len(chances) - 1)), chances)
    assert (len(part.extend(copied, 16)) > len(copied)) == runs
    assert part.extend(EMPTY, 0) == EMPTY


class TimedStats(HeadStats):
    """A pass takes half of the time of a step that emits two tokens: it has to bring more than one token."""

    def __init__(self) -> None:
        super().__init__(is_timed=False)
        self.pass_seconds, self.step_seconds, self.step_tokens = 0.5, 1.0, 2.0


@pytest.mark.parametrize(
    ("kind", "stats", "most"),
    [("random", TimedStats(), 1), ("wrong", HeadStats(is_timed=False), 500), ("never", HeadStats(is_timed=False), 200)],
)
def test_a_head_that_costs_more_than_it_brings_rests(kind: str, stats: HeadStats, most: int) -> None:
    model = AdversarialHead(kind)
    model.stats = stats  # type: ignore[assignment]
    head = Head(model)
    head.begin((1, 2, 3), ())
    known = 0
    for step in range(600 if most > 1 else EXPLORE_EVERY + 8):
        start, known = known, len(head.text) - 1
        head.connect(lambda: [HiddenStates(start, (torch.zeros(known - start, 2),))], lambda function: function())  # noqa: B023
        assert len(head.propose(tuple(head.text), 16)) <= 4 * MAX_DEPTH
        head.observe(EMPTY, Accepted((), (5 + step % 2,)), None)
    assert 0 < model.last.passes <= most


@pytest.mark.parametrize(("is_parallel", "runs"), [(False, False), (True, True)])
def test_a_pass_that_guesses_a_block_is_worth_all_of_its_guesses(is_parallel: bool, runs: bool) -> None:
    model = AdversarialHead("wrong")
    model.stats, model.is_parallel = TimedStats(), is_parallel  # type: ignore[assignment]
    head = Head(model)
    head.connect(lambda: [HiddenStates(0, (torch.zeros(2, 2),))], lambda function: function())
    head.begin((1, 2, 3), ())
    assert (len(head.propose((1, 2, 3), 16)) > 1) == runs
