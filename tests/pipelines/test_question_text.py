"""Questions that no single quoted sentence answers are recognized, and refused with one sentence."""

from __future__ import annotations

import pytest

from antiphon.pipelines.question_text import (
    LENGTH_LIMIT,
    SEVERAL_LIMIT,
    SUMMARY_LIMIT,
    check_question,
    limit_of,
    other_language,
    questions_in,
)


@pytest.mark.parametrize(
    "question",
    [
        "Summarise the documents.",
        "summarize these files please",
        "Can you give me a short summary of the handbook?",
        "What are these documents about?",
        "TL;DR of the minutes",
        "What do the files contain?",
    ],
)
def test_a_question_for_a_summary_is_recognized(question: str) -> None:
    assert limit_of(question) == SUMMARY_LIMIT


@pytest.mark.parametrize(
    ("question", "language"),
    [
        ("Wie kann ich die Datei löschen?", "German"),
        ("Comment est-ce que je peux arrêter le serveur ?", "French"),
        ("¿Cómo puedo pausar una cola?", "Spanish"),
        ("Hoe kan ik de server stoppen?", "Dutch"),
        ("Как остановить очередь?", "Russian or another language in Cyrillic"),
        ("キューを停止するには?", "Japanese"),
    ],
)
def test_another_language_is_recognized(question: str, language: str) -> None:
    assert other_language(question) == language
    assert f"the question seems to be {language};" in limit_of(question)


@pytest.mark.parametrize(
    "question", ["How do I pause a queue and how do I resume it?", "What is the port? And how large may a file be?"]
)
def test_two_questions_in_one_are_recognized(question: str) -> None:
    assert limit_of(question) == SEVERAL_LIMIT
    assert len(questions_in(question)) == 2


def test_a_very_long_question_is_recognized() -> None:
    assert limit_of(f"{'Since the worker stopped again, ' * 15}why is the job stalled?") == LENGTH_LIMIT


@pytest.mark.parametrize(
    "question",
    [
        "How do I pause a queue?",
        "How is the column summary computed?",
        "What does the option --summary do?",
        "What is a queue and a worker?",
        "Who is de la Cruz?",
        "What does 'die' do in the CLI?",
        "May I use the tidal models commercially?",
        "Which of the two is faster, und warum?",
        "My pattern swallows the whole line, how do I fix it?",
    ],
)
def test_nothing_is_said_about_an_ordinary_question(question: str) -> None:
    assert limit_of(question) == ""


def test_an_empty_question_is_refused() -> None:
    with pytest.raises(ValueError, match="The question is empty"):
        check_question(" \n")


def test_a_question_of_many_polite_words_is_read_in_linear_time() -> None:
    assert limit_of("could you please " * 500) == LENGTH_LIMIT
