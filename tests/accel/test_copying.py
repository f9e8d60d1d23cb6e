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


def steps_of(tie: Any) -> list[tuple[int, tuple[int, ...]]]:
    """Return the draft rows and emitted tokens of every step; the model emits X B C H K J and the end."""
    recording = Recording((), REFERENCES, (X, B, C, H, K, J, EOS))
    return [
        (step.drafted, step.tokens) for step in replay_steps(recording, Copying(n=1, k=3, tie=tie), num_draft_tokens=32)
    ]


def test_tie_first_copies_the_first_match_step_by_step() -> None:
    assert steps_of("first") == [(0, (X,)), (0, (B,)), (3, (C, H)), (1, (K, J)), (0, (EOS,))]


def test_tie_last_saves_a_step_here_and_emits_the_same_tokens() -> None:
    assert steps_of("last") == [(0, (X,)), (0, (B,)), (3, (C, H, K, J)), (0, (EOS,))]


def test_the_longest_match_wins_over_an_earlier_shorter_one() -> None:
    assert copied([X, B], k=2) == (C, D)
    assert copied([G, B], k=2) == (C, H)


def test_a_copy_never_crosses_into_the_next_reference() -> None:
    assert copied([D, E], k=18) == (F,)
    assert copied([F]) == ()
    assert copied([E, F, G], k=2) == (B, C)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_k_is_the_number_of_copied_tokens(k: int) -> None:
    assert copied([A], k=k) == (B, C, D, E)[:k]


def test_the_budget_limits_the_copy() -> None:
    copying = Copying(k=4)
    copying.begin([], REFERENCES)
    assert copying.propose([A], 2).tokens == (B, C)
    assert copying.propose([A], 0).tokens == ()


def test_fewer_than_n_matching_tokens_are_no_match() -> None:
    assert copied([X, B], n=2) == ()
    assert copied([A, B], n=2, k=1) == (C,)
    assert copied([X, A, B], n=3) == ()


def test_at_most_max_n_tokens_are_compared() -> None:
    references = ((A, B, C, D, K), (X, B, C, D, H))
    assert copied([X, B, C, D], references, max_n=4) == (H,)
    assert copied([X, B, C, D], references, max_n=3) == (K,)


def test_a_match_without_continuation_is_skipped() -> None:
    references = ((A, B), (C, B, D))
    assert copied([A, B], references) == (D,)
    assert copied([A, B], references, strict_official=True) == ()


def test_strict_official_uses_the_first_match_even_at_the_end_of_a_reference() -> None:
    references = ((A, B), (A, B, D))
    assert copied([A, B], references) == (D,)
    assert copied([A, B], references, strict_official=True) == ()
    assert copied([A, B], references, strict_official=True, tie="last") == (D,)


def test_only_generated_tokens_are_looked_up_unless_use_prompt_tail() -> None:
    for use_prompt_tail, tokens in ((False, ()), (True, (C, H, K))):
        copying = Copying(use_prompt_tail=use_prompt_tail)
        copying.begin([X, G, B], REFERENCES)
        assert copying.propose([X, G, B], 32).tokens == tokens


def test_the_prompt_does_not_lengthen_a_match() -> None:
    copying = Copying()
    copying.begin([G], REFERENCES)
    assert copying.propose([G, B], 2).tokens == (C, D)


def test_random_ties_are_the_same_for_the_same_seed_in_every_request() -> None:
    references = tuple((A, token) for token in range(50, 90))

    def choices(copying: Copying) -> list[tuple[int, ...]]:
        copying.begin([], references)
        return [copying.propose([A], 1).tokens for _ in range(20)]

    copying = Copying(tie="random", seed=3)
    first = choices(copying)
    assert choices(copying) == first == choices(Copying(tie="random", seed=3))
    assert choices(Copying(tie="random", seed=4)) != first
    assert len(set(first)) > 5


def test_a_longer_match_has_higher_chances() -> None:
    copying = Copying()
    copying.begin([], REFERENCES)
    short, long = copying.propose([X, B], 3), copying.propose([A, B], 3)
    assert short.tokens == long.tokens
    assert all(less < more for less, more in zip(short.chances, long.chances, strict=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "n is 0 and max_n is 5; a match needs 1 <= n <= max_n"),
        ({"n": 6}, "n is 6 and max_n is 5"),
        ({"max_n": 0}, "n is 1 and max_n is 0"),
        ({"k": 0}, "k is 0; a copy needs at least 1 token"),
        ({"tie": "middle"}, "tie is 'middle'; choose one of first, last, random"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Copying(**options)
