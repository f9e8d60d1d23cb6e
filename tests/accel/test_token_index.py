"""The token index: positions after earlier occurrences of the last tokens."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.accel.drafting.drafters.token_index import TokenIndex


def index_of(*sequences: list[int]) -> TokenIndex:
    index = TokenIndex()
    for sequence in sequences:
        index.extend(sequence)
        index.close()
    return index


def followers(index: TokenIndex, tail: list[int], longest: int = 8) -> list[list[int]]:
    return [[index.tokens[position] for position in positions] for positions in index.find_matches(tail, longest)]


def test_positions_are_listed_for_every_length_of_match() -> None:
    index = index_of([1, 2, 3], [9, 2, 4], [1, 2, 5])
    assert followers(index, [1, 2]) == [[3, 4, 5], [3, 5]]
    assert followers(index, [7, 1, 2]) == [[3, 4, 5], [3, 5]]
    assert followers(index, [1, 2], longest=1) == [[3, 4, 5]]


def test_an_unknown_or_missing_token_has_no_match() -> None:
    assert index_of([1, 2]).find_matches([], 8) == []
    assert index_of([1, 2]).find_matches([7], 8) == []
    assert TokenIndex().find_matches([1], 8) == []


def test_no_match_crosses_the_end_of_a_sequence() -> None:
    index = index_of([1, 2], [3, 4])
    assert index.find_matches([2], 8) == []
    assert followers(index, [2, 3]) == [[4]]


def test_a_match_stops_at_the_start_of_its_text() -> None:
    assert followers(index_of([1, 2]), [2, 1, 1], longest=3) == [[2]]


def test_an_extended_text_is_indexed_like_a_whole_one() -> None:
    chance = random.Random(0)
    text = [chance.randrange(6) for _ in range(60)]
    grown, whole = TokenIndex(), TokenIndex()
    for start in range(0, 60, 7):
        grown.extend(text[start : start + 7])
    whole.extend(text)
    for end in range(60):
        assert grown.find_matches(text[:end], 5) == whole.find_matches(text[:end], 5)


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


def test_continuations_are_grouped_in_order_and_end_with_their_text() -> None:
    index = index_of([1, 2, 3], [1, 5], [1, 2])
    positions = index.find_matches([1], 1)[0]
    assert list(index.continuations(positions, 0)) == [2, 5]
    assert list(index.continuations(positions, 1)) == [3]
    assert index.continuations(positions[:1], 2) == {}


def test_continuations_end_at_the_current_end_of_the_open_text() -> None:
    index = TokenIndex()
    index.extend([1, 2])
    positions = index.find_matches([1], 1)[0]
    assert index.continuations(positions, 0) == {2: positions}
    assert index.continuations(positions, 1) == {}
    index.extend([3])
    assert index.continuations(positions, 1) == {3: positions}


def test_kneser_ney_ranks_tokens_by_their_distinct_predecessors() -> None:
    index = index_of([1, 5, 2, 5, 3, 5, 4], [7, 6, 7, 6, 7, 6, 7, 6])
    assert index.kneser_ney_unigrams(1) == [(5, 1.0)]
    assert dict(index.kneser_ney_unigrams(99))[5] > dict(index.kneser_ney_unigrams(99))[6]
    assert sum(share for _, share in index.kneser_ney_unigrams(99)) == pytest.approx(1)
    assert TokenIndex().kneser_ney_unigrams(3) == []
