"""The comparison of signals for answer selection: thresholds are chosen on other corpora."""

from __future__ import annotations

from benchmarks.answer_selection import MAX_DECLINED, Outcome, belongs, choose_threshold, held_out_rows
from benchmarks.answers import SpanQuestion


def outcomes_of(corpus: str, answerable: list[float], others: list[float]) -> list[Outcome]:
    """Return outcomes with these scores; all quoted lines are right."""
    return [
        *(Outcome(corpus, True, score, True, 1.0) for score in answerable),
        *(Outcome(corpus, False, score, False, 0.0) for score in others),
    ]


def test_the_threshold_separates_answers_from_refusals() -> None:
    assert choose_threshold(outcomes_of("a", [2.0, 3.0, 4.0], [0.0, 1.0])) == 2.0


def test_few_answerable_questions_are_declined_even_if_many_others_would_be() -> None:
    answerable = [0.0, 0.0, *(5.0 for _ in range(8))]
    threshold = choose_threshold(outcomes_of("a", answerable, [4.0] * 90))
    assert threshold <= 0.0, f"a fifth would be declined; at most {MAX_DECLINED:.0%} may be"


def test_a_corpus_is_judged_by_the_threshold_of_the_others() -> None:
    outcomes = outcomes_of("low", [1.0], [0.0]) + outcomes_of("high", [11.0], [10.0])
    low, high, everything = held_out_rows("x", outcomes)
    assert (low["right"], low["declined"]) == (0.0, 1.0), "the other corpus's threshold is 11"
    assert (high["right"], high["declined"]) == (1.0, 0.0), "the other corpus's threshold is 1"
    assert (everything["right"], everything["declined"], everything["corpus"]) == (0.5, 0.5, "all")


def test_a_line_belongs_to_the_answer_by_its_words_or_by_a_phrase() -> None:
    question = SpanQuestion(
        "a", "?", "a.md", ("Honey keeps for many years in a closed jar.",), ("in a jar|closed jar",)
    )
    assert belongs(question, "Honey keeps for many years.")
    assert belongs(question, "It is best in a closed jar, says everybody who has ever tried it at home.")
    assert not belongs(question, "Wax melts at 62 degrees.")
