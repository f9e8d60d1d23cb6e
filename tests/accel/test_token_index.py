"""The token index: positions after earlier occurrences of the last tokens."""

import random

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
