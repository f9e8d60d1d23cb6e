"""LLMA: one chain, copied from a matching position in a reference."""

from typing import Any

import pytest

from antiphon.accel.drafting.drafters import Copying
from benchmarks.replay import Recording, replay_steps

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


def test_the_longest_match_wins_over_an_earlier_shorter_one() -> None:
    assert copied([X, B], k=2) == (C, D)
    assert copied([G, B], k=2) == (C, H)


def test_a_copy_never_crosses_into_the_next_reference() -> None:
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
