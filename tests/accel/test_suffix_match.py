"""Suffix match: every earlier occurrence of the last token votes for the next one, found in an index of tokens."""

import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted, Draft
from antiphon.accel.drafting.drafters import RecyclingTable, SuffixMatch
from antiphon.accel.drafting.drafters.token_index import TokenIndex
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
    draft = drafted(pure(), [1, 3], [1, 3, 7], [3, 5])  # 4^2 for 7, 4^1 for 5
    chances = dict(zip(draft.tokens, draft.chances, strict=True))
    assert chances[7] / chances[5] == pytest.approx(4)
    assert draft.parents == (ROOT, ROOT)


def test_the_chance_grows_with_the_match_in_references_prompt_and_answer() -> None:
    """With a single known position, the next row is right with m / (m + ESCAPE) after m matching tokens."""
    draft = drafted(pure(), [1, 2], [1, 2, 3, 4, 5])
    assert draft.tokens == (3, 4, 5)
    assert draft.chances == pytest.approx((2 / 4, 2 / 4 * 3 / 5, 2 / 4 * 3 / 5 * 4 / 6))
    assert drafted(pure(), [9, 1], [1, 2]).tokens == (2,)
    assert drafted(pure(), [1, 3, 9, 1], prompt=3, budget=1).tokens == (3,)
    assert drafted(pure(), [9, 1, 4, 1], prompt=1, budget=1).tokens == (4,)


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


def test_begin_clears_the_table_of_this_drafter_alone_and_keeps_a_given_one() -> None:
    for table, size in ((True, 0), (RecyclingTable(), 2)):
        matcher = SuffixMatch(recycling=table)
        matcher.begin([1, 2], [])
        matcher.observe(EMPTY, Accepted((), (3,)), TorchLogits(torch.arange(20.0)[None]))
        assert matcher.recycling_table is not None
        assert matcher.recycling_table.size == 2
        matcher.begin([4], [])
        assert matcher.recycling_table.size == size


def index_of(*sequences: list[int]) -> TokenIndex:
    index = TokenIndex()
    for sequence in sequences:
        index.extend(sequence)
        index.close()
    return index


def followers(index: TokenIndex, tail: list[int], longest: int = 8) -> list[list[int]]:
    return [[index.tokens[position] for position in positions] for positions in index.find_matches(tail, longest)]


def test_no_match_crosses_the_end_of_a_sequence() -> None:
    index = index_of([1, 2], [3, 4])
    assert index.find_matches([2], 8) == []
    assert followers(index, [2, 3]) == [[4]]


@given(seed=st.integers(0, 2**32 - 1))
def test_positions_equal_those_of_a_naive_search(seed: int) -> None:
    chance = random.Random(seed)
    texts = [[chance.randrange(4) for _ in range(chance.randrange(12))] for _ in range(6)]
    tail = [chance.randrange(4) for _ in range(6)]
    found = followers(index_of(*texts), tail, 4)
    for length in range(1, 5):
        wanted = tail[-length:]
        plain = [
            text[at + length] for text in texts for at in range(len(text) - length) if text[at : at + length] == wanted
        ]
        assert (found[length - 1] if length <= len(found) else []) == plain


def test_newest_limits_the_positions_considered() -> None:
    index = index_of([1, 2, 1, 3, 1, 4])
    assert [index.tokens[position] for position in index.find_matches([1], 1, newest=2)[0]] == [3, 4]
