"""The comparison of signals for answer selection: thresholds are chosen on other corpora."""

from __future__ import annotations

import pytest
import torch

from antiphon.accel import LanguageModel
from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model
from antiphon.pipelines.benchmark.answers import SpanQuestion
from benchmarks.answer_selection import (
    MAX_DECLINED,
    SCORED_TOKENS,
    Outcome,
    belongs,
    choose_threshold,
    held_out_rows,
    log_probabilities,
)


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


def test_log_probabilities_equal_those_of_plain_forward_passes() -> None:
    language_model = LanguageModel(tiny_model("llama"), byte_tokenizer())
    prompt, texts = "Bees dance. ", ["Wax melts in the sun.", "W", "é"]
    ids = list(language_model.tokenize(prompt).tokens)
    expected = []
    for text in texts:
        tokens = language_model.tokenizer.encode(text, add_special_tokens=False)[:SCORED_TOKENS]
        with torch.no_grad():
            rows = language_model.model(torch.tensor([[*ids, *tokens]])).logits[0].log_softmax(-1)
        expected.append(sum(float(rows[len(ids) - 1 + at, token]) for at, token in enumerate(tokens)))
    assert log_probabilities(language_model, prompt, texts) == pytest.approx(expected, abs=1e-4)
