"""Suffix match: every earlier occurrence of the last token votes for the next token."""

import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted, Draft, most_likely_chain
from antiphon.accel.drafting.drafters import RecyclingTable, SuffixMatch
from antiphon.accel.engines.torch.logits import TorchLogits


def drafted(
    matcher: SuffixMatch, context: list[int], *references: list[int], prompt: int = 0, budget: int = 32
) -> Draft:
    """Return the draft after ``context``, whose first ``prompt`` tokens are the prompt."""
    matcher.begin(context[:prompt], references)
    return matcher.propose(context, budget)


def pure(**options: Any) -> SuffixMatch:
    """Return a drafter without common tokens."""
    return SuffixMatch(common=0, **options)


def test_a_longer_match_weighs_more_than_many_short_ones() -> None:
    references = [[1, 2, 3, 7], [8, 3, 5], [9, 3, 5]]
    assert drafted(pure(), [1, 2, 3], *references).tokens[0] == 7
    assert drafted(pure(), [6, 6, 3], *references).tokens[0] == 5


def test_shares_follow_the_weights() -> None:
    draft = drafted(pure(base=4.0, escape=2.0), [1, 3], [1, 3, 7], [3, 5])  # 4^2 for 7, 4^1 for 5
    chances = dict(zip(draft.tokens, draft.chances, strict=True))
    assert chances[7] / chances[5] == pytest.approx(4)
    assert draft.parents == (ROOT, ROOT)


def test_the_chance_of_a_continuation_grows_with_the_match() -> None:
    """With a single known position, the next row is right with m / (m + escape) after m matching tokens."""
    draft = drafted(pure(escape=2.0), [1, 2], [1, 2, 3, 4, 5])
    assert draft.tokens == (3, 4, 5)
    assert draft.chances == pytest.approx((2 / 4, 2 / 4 * 3 / 5, 2 / 4 * 3 / 5 * 4 / 6))


def test_positions_with_equal_continuations_share_a_path() -> None:
    draft = drafted(pure(), [1], [1, 2, 3], [1, 2, 4])
    assert draft.tokens[0] == 2
    assert draft.parents[1:] == (0, 0)
    assert set(draft.tokens[1:]) == {3, 4}


def test_without_branching_all_rows_are_on_the_most_likely_path() -> None:
    references = ([1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 9, 4, 5], [1, 5, 9], [1, 6])
    chain = drafted(pure(branching=False), [1], *references, budget=7)
    assert chain.tokens == (2, 3, 4, 5, 6, 7, 8)
    assert chain.parents == (ROOT, 0, 1, 2, 3, 4, 5)
    assert len(most_likely_chain(drafted(pure(), [1], *references, budget=7))) < 7, (
        "a tree of as many rows ends earlier"
    )
    assert most_likely_chain(drafted(pure(), [1], *references, budget=99)) == chain
    assert len(pure(branching=False).propose([7], 8)) == 0, "the token is unknown"


def test_rows_are_sorted_by_chance() -> None:
    chance = random.Random(1)
    references = [[chance.randrange(20) for _ in range(200)] for _ in range(5)]
    draft = drafted(SuffixMatch(), references[2][50:60], *references)
    assert len(draft) == 32
    assert list(draft.chances) == sorted(draft.chances, reverse=True)


def test_references_prompt_and_answer_are_all_used() -> None:
    assert drafted(pure(), [9, 1], [1, 2]).tokens == (2,)
    assert drafted(pure(), [1, 3, 9, 1], prompt=3, budget=1).tokens == (3,)
    assert drafted(pure(), [9, 1, 4, 1], prompt=1, budget=1).tokens == (4,)


def test_prompt_and_answer_are_one_text() -> None:
    assert drafted(pure(), [5, 6, 7, 5], prompt=1, budget=2).tokens == (6, 7)


def test_drafts_never_cross_from_one_text_into_the_next() -> None:
    assert len(drafted(pure(), [2], [1, 2], [3, 4])) == 0
    assert drafted(pure(), [9, 1], [1, 2], [3, 4], prompt=1).tokens == (2,)


def test_an_unknown_token_gives_only_common_tokens() -> None:
    reference = [1, 5, 2, 5, 3, 5, 4, 4, 4]
    assert len(drafted(pure(), [99], reference)) == 0
    draft = drafted(SuffixMatch(common=1), [99], reference)
    assert (draft.tokens, draft.parents) == ((5,), (ROOT,))


def test_common_tokens_share_only_the_remaining_probability() -> None:
    reference = [7, 1, 5, 2, 5, 3, 5, 4]
    known, unknown = (drafted(SuffixMatch(common=1), [token], reference, budget=99) for token in (7, 99))
    first = {token: known.chances[row] for row, token in enumerate(known.tokens) if known.parents[row] == ROOT}
    assert set(first) == {1, 5}
    assert unknown.tokens == (5,)
    assert first[5] == pytest.approx(unknown.chances[0] * (1 - first[1]))


def test_a_common_token_that_is_a_known_continuation_is_one_row() -> None:
    draft = drafted(SuffixMatch(), [1], [1, 5, 2, 5, 3, 5])
    assert draft.tokens.count(5) == len(
        {parent for parent, t in zip(draft.parents, draft.tokens, strict=True) if t == 5}
    )


def test_common_tokens_are_ranked_again_when_the_answer_has_outgrown_the_prompt() -> None:
    matcher = SuffixMatch()
    matcher.begin([9], [])
    context = [9, 1, 5, 2, 5, 3, 5, 4, 5]
    assert 5 in matcher.propose([*context, 77], 32).tokens


def test_the_maximum_depth_is_the_given_one() -> None:
    text = list(range(100, 190))
    assert max(drafted(pure(), [100], text, budget=99).depths) == 40
    assert max(drafted(pure(depth=3), [100], text).depths) == 3


def test_only_the_newest_positions_of_a_frequent_token_count() -> None:
    reference = [token for new in range(10, 30) for token in (1, new)]
    assert drafted(pure(max_positions=3, depth=1), [1], reference).tokens == (27, 28, 29)


def test_a_long_match_counts_however_old_it_is() -> None:
    reference = [8, 1, 99, *(token for new in range(10, 90) for token in (1, new))]
    assert drafted(pure(max_positions=3), [8, 1], reference).tokens[0] == 99


def test_references_contained_in_the_prompt_give_the_same_rows() -> None:
    """Otherwise every occurrence would be counted twice."""
    reference = [1, 2, 3, 1, 2, 4, 1, 5, 6, 7]
    once = drafted(pure(depth=3), [*reference, 50, 1, 2], prompt=len(reference) + 1)
    twice = drafted(pure(depth=3), [*reference, 50, 1, 2], reference, prompt=len(reference) + 1)
    assert {once.tokens[row] for row in (0, 1)} == {twice.tokens[row] for row in (0, 1)} == {3, 4}
    assert twice.chances[0] >= once.chances[0]


@given(seed=st.integers(0, 2**32 - 1), stride=st.integers(1, 4))
def test_extending_by_the_answer_equals_rebuilding(seed: int, stride: int) -> None:
    chance = random.Random(seed)
    prompt, reference, output = ([chance.randrange(8) for _ in range(length)] for length in (20, 30, 40))
    grown = pure()
    grown.begin(prompt, [reference])
    for end in range(1, 40, stride):
        assert grown.propose(prompt + output[:end], 32) == drafted(
            pure(), prompt + output[:end], reference, prompt=len(prompt)
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base": 1.0}, "base is 1.0"),
        ({"max_match": 0}, "max_match is 0, depth is 40 and max_positions is 64; give 1 or more"),
        ({"depth": 0}, "depth is 0"),
        ({"max_positions": 0}, "max_positions is 0"),
        ({"escape": 0.0}, "escape is 0.0"),
        ({"common": -1}, "common is -1"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SuffixMatch(**options)


def test_begin_clears_the_table_of_this_drafter_alone_and_keeps_a_given_one() -> None:
    for table, size in ((True, 0), (RecyclingTable(), 2)):
        matcher = SuffixMatch(recycling=table)
        matcher.begin([1, 2], [])
        matcher.observe(EMPTY, Accepted((), (3,)), TorchLogits(torch.arange(20.0)[None]))
        assert matcher.recycling_table is not None
        assert matcher.recycling_table.size == 2
        matcher.begin([4], [])
        assert matcher.recycling_table.size == size
