"""Drafters that match text: LLMA copies one chain from a reference, and the trie drafts all continuations."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.accel.drafting.draft import Draft
from antiphon.accel.drafting.drafters import Copying, Trie
from benchmarks.replay import Recording, replay_steps
from tests.accel.oracles import spelled

A, B, C, D, E, F, G, H, K, J, X, EOS = range(12)
REFERENCES = ((A, B, C, D, E, F), (G, B, C, H, K))


def copied(answer: list[int], references: tuple[tuple[int, ...], ...] = REFERENCES, **options: Any) -> tuple[int, ...]:
    copying = Copying(**options)
    copying.begin([99], references)
    draft = copying.propose([99, *answer], 32)
    assert draft.parents == tuple(range(-1, len(draft) - 1)), "a copy is a chain"
    return draft.tokens


def test_the_first_match_is_copied_step_by_step() -> None:
    """The model emits X B C H K J and the end."""
    recording = Recording((), REFERENCES, (X, B, C, H, K, J, EOS))
    steps = replay_steps(recording, Copying(n=1, k=3), num_draft_tokens=32)
    assert [(step.drafted, step.tokens) for step in steps] == [
        (0, (X,)),
        (0, (B,)),
        (3, (C, H)),
        (1, (K, J)),
        (0, (EOS,)),
    ]


def test_the_longest_match_is_copied_and_never_beyond_its_reference() -> None:
    assert copied([X, B], k=2) == (C, D)
    assert copied([G, B], k=2) == (C, H)
    assert copied([D, E], k=18) == (F,)
    assert copied([F]) == ()
    assert copied([E, F, G], k=2) == (B, C)


def test_only_generated_tokens_are_looked_up() -> None:
    copying = Copying()
    copying.begin([X, G, B], REFERENCES)
    assert copying.propose([X, G, B], 32).tokens == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "n is 0 and max_n is 5; a match needs 1 <= n <= max_n"),
        ({"n": 6}, "n is 6 and max_n is 5"),
        ({"max_n": 0}, "n is 1 and max_n is 0"),
        ({"k": 0}, "k is 0; a copy needs at least 1 token"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Copying(**options)


TEXT = (1, 2, 3, 1, 2, 4, 1, 2, 3, 5)


def drafted(trie: Trie, query: list[int], *references: tuple[int, ...], budget: int = 1000) -> Draft:
    trie.begin([], references)
    return trie.propose(query, budget)


def paths(draft: Draft) -> list[tuple[int, ...]]:
    """Return the tokens from the root down to each row."""
    return [tuple(spelled(draft, row)) for row in range(len(draft))]


def small(**options: Any) -> Trie:
    return Trie(n=4, prefix=2, **options)


def test_rows_are_sorted_and_an_unknown_prefix_backs_off_to_a_shorter_one() -> None:
    assert paths(drafted(small(), [1, 2], TEXT)) == [(3,), (4,), (3, 1), (4, 1), (3, 5)]
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
