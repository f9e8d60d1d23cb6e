"""The relevance of a line: to a follow-up with its conversation, and to the best of several questions in one."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from antiphon.accel.text.messages import Message
from antiphon.pipelines import request_plan
from antiphon.pipelines.relevance import LineScorer
from antiphon.pipelines.request_plan import line_relevance
from antiphon.retrieval import Passage

PAUSE = "Workers finish what they are doing and take no further jobs."
PORT = "The server listens on port 8000."
LINES = tuple((Passage.at("a.md", place, text), text) for place, text in ((0, PAUSE), (100, PORT)))
PASSAGES = tuple(passage for passage, _ in LINES)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Score lines by the words that they share with a question; return the questions that lines are scored for."""
    questions: list[str] = []

    def scorer(question: str) -> LineScorer:
        questions.append(question)
        words = set(re.findall(r"\w+", question.lower()))

        def relevance(lines: Sequence[tuple[Passage, str]]) -> list[float]:
            return [float(len(words & set(re.findall(r"\w+", line.lower())))) for _, line in lines]

        return relevance

    monkeypatch.setattr(request_plan, "relevance_scorer", scorer)
    return questions


def test_a_line_that_answers_one_of_two_questions_is_as_relevant_as_to_this_one(asked: list[str]) -> None:
    question = "Which jobs do workers take? And on which port does the server listen?"
    both = line_relevance(question, question, PASSAGES)(LINES)
    first, second = asked
    assert first == "Which jobs do workers take?"
    assert second.endswith("And on which port does the server listen?")
    alone = [line_relevance(each, each, PASSAGES)(LINES) for each in (first, second)]
    assert both == [max(each) for each in zip(*alone, strict=True)]


def test_a_follow_up_prefers_the_section_of_the_previous_answer(asked: list[str]) -> None:
    history: list[Message] = [{"role": "user", "content": "?"}, {"role": "assistant", "content": f"[1] {PAUSE}"}]
    elsewhere = Passage.at("b.md", 0, "And how long does it take?")
    lines = [(elsewhere, elsewhere.text), (PASSAGES[0], elsewhere.text)]
    found = (elsewhere, PASSAGES[0])
    other, near = line_relevance("And how long?", "How? And how long?", found, history)(lines)
    assert near > other
    other, near = line_relevance("How long?", "How long?", found, history)(lines)
    assert near == other, "a complete question does not depend on the conversation"
