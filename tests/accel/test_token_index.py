"""Where tokens stood before."""

import random

import pytest

from antiphon.accel.drafting.drafters.token_index import END, TokenIndex


def index_of(*sequences: list[int]) -> TokenIndex:
    occurrences = TokenIndex()
    for sequence in sequences:
        occurrences.extend(sequence)
        occurrences.close()
    return occurrences


def following(occurrences: TokenIndex, tail: list[int], longest: int = 8) -> list[list[int]]:
    return [[occurrences.tokens[place] for place in places] for places in occurrences.find_matches(tail, longest)]


def test_places_are_listed_for_every_length_of_match() -> None:
    occurrences = index_of([1, 2, 3], [9, 2, 4], [1, 2, 5])
    assert following(occurrences, [1, 2]) == [[3, 4, 5], [3, 5]]
    assert following(occurrences, [7, 1, 2]) == [[3, 4, 5], [3, 5]]
    assert following(occurrences, [1, 2], longest=1) == [[3, 4, 5]]


def test_nothing_is_found_for_nothing() -> None:
    assert index_of([1, 2]).find_matches([], 8) == []
    assert index_of([1, 2]).find_matches([7], 8) == []
    assert TokenIndex().find_matches([1], 8) == []


def test_no_match_runs_across_an_end() -> None:
    occurrences = index_of([1, 2], [3, 4])
    assert occurrences.find_matches([2], 8) == []
    assert following(occurrences, [2, 3]) == [[4]]


def test_a_match_longer_than_the_text_before_it_stops_at_its_start() -> None:
    assert following(index_of([1, 2]), [2, 1, 1], longest=3) == [[2]]


def test_an_end_is_a_place_where_that_is_asked_for() -> None:
    occurrences = TokenIndex()
    occurrences.extend([1, 2])
    occurrences.close(is_position=True)
    assert following(occurrences, [2]) == [[END]]


def test_a_text_that_grows_is_found_as_if_it_had_been_whole() -> None:
    chance = random.Random(0)
    text = [chance.randrange(6) for _ in range(60)]
    grown, whole = TokenIndex(), TokenIndex()
    for start in range(0, 60, 7):
        grown.extend(text[start : start + 7])
    whole.extend(text)
    for end in range(60):
        assert grown.find_matches(text[:end], 5) == whole.find_matches(text[:end], 5)


@pytest.mark.parametrize("seed", range(5))
def test_places_are_those_that_a_plain_search_finds(seed: int) -> None:
    chance = random.Random(seed)
    texts = [[chance.randrange(4) for _ in range(chance.randrange(12))] for _ in range(6)]
    tail = [chance.randrange(4) for _ in range(6)]
    found = following(index_of(*texts), tail, 4)
    for length in range(1, 5):
        wanted = tail[-length:]
        plain = [
            text[at + length] for text in texts for at in range(len(text) - length) if text[at : at + length] == wanted
        ]
        assert (found[length - 1] if length <= len(found) else []) == plain


def test_only_the_newest_places_of_a_token_are_looked_at_if_so_asked() -> None:
    occurrences = index_of([1, 2, 1, 3, 1, 4])
    assert [occurrences.tokens[place] for place in occurrences.find_matches([1], 1, newest=2)[0]] == [3, 4]


def test_continuations_are_grouped_in_order_and_end_with_their_text() -> None:
    occurrences = index_of([1, 2, 3], [1, 5], [1, 2])
    places = occurrences.find_matches([1], 1)[0]
    assert list(occurrences.continuations(places, 0)) == [2, 5]
    assert list(occurrences.continuations(places, 1)) == [3]
    assert occurrences.continuations(places[:1], 2) == {}


def test_the_open_text_ends_where_it_ends_so_far() -> None:
    occurrences = TokenIndex()
    occurrences.extend([1, 2])
    places = occurrences.find_matches([1], 1)[0]
    assert occurrences.continuations(places, 0) == {2: places}
    assert occurrences.continuations(places, 1) == {}
    occurrences.extend([3])
    assert occurrences.continuations(places, 1) == {3: places}


def test_a_token_is_versatile_that_followed_many_different_ones() -> None:
    occurrences = index_of([1, 5, 2, 5, 3, 5, 4], [7, 6, 7, 6, 7, 6, 7, 6])
    assert occurrences.kneser_ney_unigrams(1) == [(5, 1.0)]
    assert dict(occurrences.kneser_ney_unigrams(99))[5] > dict(occurrences.kneser_ney_unigrams(99))[6]
    assert sum(share for _, share in occurrences.kneser_ney_unigrams(99)) == pytest.approx(1)
    assert TokenIndex().kneser_ney_unigrams(3) == []
