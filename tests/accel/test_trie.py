"""The n-gram trie: all known continuations as one tree, the most frequent rows first."""

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from antiphon.accel.drafting.draft import ROOT, Draft
from antiphon.accel.drafting.drafters import Trie

TEXT = (1, 2, 3, 1, 2, 4, 1, 2, 3, 5)


def drafted(trie: Trie, query: list[int], *references: tuple[int, ...], budget: int = 1000) -> Draft:
    trie.begin([], references)
    return trie.propose(query, budget)


def paths(draft: Draft) -> list[tuple[int, ...]]:
    """Return the tokens from the root down to each row."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        found.append((*(() if parent == ROOT else found[parent]), token))
    return found


def small(**options: Any) -> Trie:
    return Trie(n=4, prefix=2, **options)


def test_rows_are_sorted_by_frequency_then_depth_then_first_occurrence() -> None:
    assert paths(drafted(small(), [1, 2], TEXT)) == [(3,), (4,), (3, 1), (4, 1), (3, 5)]


def test_an_unknown_prefix_backs_off_to_a_shorter_one() -> None:
    assert paths(drafted(small(), [9, 2], TEXT)) == paths(drafted(small(), [1, 2], TEXT))


@given(seed=st.integers(0, 2**32 - 1))
def test_without_a_limit_all_continuations_up_to_the_depth_are_drafted(seed: int) -> None:
    chance = random.Random(seed)
    text = tuple(chance.randrange(5) for _ in range(60))
    draft = drafted(Trie(7, 2), [text[7], text[8]], text)
    query = text[7:9]
    places = [at + 2 for at in range(len(text) - 2) if text[at : at + 2] == query]
    everything = {text[at : at + d] for at in places for d in range(1, 6) if at + d <= len(text)}
    assert set(paths(draft)) == everything
    assert len(draft) == len(everything)


def test_drafts_never_cross_from_one_document_into_the_next() -> None:
    assert len(drafted(Trie(), [2], (1, 2), (3, 4))) == 0


def test_extending_by_the_output_equals_rebuilding() -> None:
    chance = random.Random(7)
    prompt, reference, output = ([chance.randrange(6) for _ in range(length)] for length in (20, 30, 40))
    grown = Trie()
    grown.begin(prompt, [reference])
    for end in range(1, 40):
        context = prompt + output[:end]
        rebuilt = Trie()
        rebuilt.begin(prompt, [reference])
        assert grown.propose(context, 32) == rebuilt.propose(context, 32)
