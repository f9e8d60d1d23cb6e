"""Evaluation of the reader: every figure is correct for answers judged by hand."""

import pytest

from antiphon.accel import Summary, Usage
from antiphon.accel.decoding.stats import FinishReason
from antiphon.pipelines.answer import Answer
from antiphon.pipelines.quotes import Quote
from antiphon.retrieval import Passage
from recipes.reader.evaluate import JudgedAnswer
from recipes.reader.example import Question

PASSAGES = (Passage.at("a.txt", 0, "Bees dance. They sing."), Passage.at("b.txt", 0, "Wax melts."))
WANTED = Question("Who dances?", (Quote(1, "Bees dance."),))


def _judged(question: Question, text: str, finish: FinishReason = "stop") -> JudgedAnswer:
    steps = Summary(steps=3, tokens=11, seconds=2.0)
    return JudgedAnswer(question, Answer(question.text, text, (), PASSAGES, Usage(1, 11), steps, finish))


@pytest.mark.parametrize(
    ("text", "verbatim", "passage", "sentence"),
    [
        ("[1] Bees dance.", True, True, True),
        ("[1] They sing.", True, True, False),
        ("[2] Bees dance.", False, False, False),
        ("[2] Wax melts.", True, False, False),
        ("[3] Bees dance.", False, False, False),
        ("[1] Bees danced.", False, True, False),
        ("[1] Bees", False, True, False),
        ("[1] They sing.\n[1] Bees dance.", True, True, True),
        ("[1] Bees dance.\n[2] Invented.", False, True, True),
        ("Bees dance.", False, False, False),
    ],
)
def test_an_answer_is_judged_by_its_quotes(text: str, verbatim: bool, passage: bool, sentence: bool) -> None:
    judged = _judged(WANTED, text)
    assert (judged.is_verbatim, judged.is_right_passage, judged.is_right_sentence) == (verbatim, passage, sentence)
