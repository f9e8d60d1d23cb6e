"""Of ten conversations whose second question needs the first, at least seven are answered right.

`benchmarks/corpora/conversations.jsonl` has the conversations and the texts that answer their second questions.
They are asked in Python; `test_same_answers.py` compares all paths.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from antiphon.accel import LanguageModel
from antiphon.pipelines import Chat, Rag
from antiphon.pipelines.question import is_follow_up
from antiphon.retrieval import Retriever
from benchmarks.answers import has_words

pytestmark = [
    pytest.mark.usefixtures("encoded_once"),
    pytest.mark.slow,
    pytest.mark.exhaustive,
    pytest.mark.timeout(900),
]

CORPORA = Path(__file__).parents[2] / "benchmarks" / "corpora"
LINES = (CORPORA / "conversations.jsonl").read_text("utf-8").splitlines()
CONVERSATIONS: list[dict[str, Any]] = [json.loads(line) for line in LINES]
MAX_WRONG = 3

Hold = Callable[[Sequence[str]], str]
"""Asks the questions of one conversation, and returns the last answer."""


@pytest.fixture(scope="module")
def rag(index: Path, bundled_reader: LanguageModel) -> Rag:
    return Rag(Retriever.open(index), bundled_reader)


def wrong_answers(hold: Hold) -> list[tuple[str, str]]:
    """Return the second questions whose answers are wrong, with the answers."""
    answers = [(each, hold(each["turns"])) for each in CONVERSATIONS]
    return [
        (each["turns"][1], text) for each, text in answers if not any(has_words(text, span) for span in each["spans"])
    ]


def test_there_are_ten_conversations_and_each_second_question_refers_to_the_first() -> None:
    assert len(CONVERSATIONS) == 10
    assert all(is_follow_up(each["turns"][1]) for each in CONVERSATIONS)


def test_in_python(rag: Rag) -> None:
    def hold(questions: Sequence[str]) -> str:
        chat = Chat(rag)
        return [chat.ask(question).text for question in questions][-1]

    wrong = wrong_answers(hold)
    assert len(wrong) <= MAX_WRONG, wrong


def test_without_the_conversation_fewer_are_right(rag: Rag) -> None:
    assert len(wrong_answers(lambda questions: rag.ask(questions[-1]).text)) > MAX_WRONG
