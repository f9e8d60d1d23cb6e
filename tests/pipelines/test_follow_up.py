"""Follow-up questions: recognized by what they say, and preceded by the question that they refer to."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from antiphon.accel.text.messages import Message
from antiphon.pipelines.follow_up import (
    continuity,
    is_follow_up,
    is_rewriting,
    resolve_question,
    rewrite_question,
    with_topic,
)
from antiphon.retrieval import Passage

FIRST = "How do I turn on the debug mode of the server?"


def turns(*questions: str) -> list[Message]:
    """Return a conversation of these questions, all with the same answer."""
    return [
        message
        for question in questions
        for message in ({"role": "user", "content": question}, {"role": "assistant", "content": "Run it with --debug."})
    ]


@pytest.mark.parametrize(
    "question",
    [
        "And how do I turn it off?",
        "how do i turn it off",
        "Why?",
        "What about Windows machines in a cluster?",
        "Which of them is the fastest one here?",
        "Does that also work for the test server?",
        "Who maintains this?",
        "Are these settings kept after a restart?",
        "On Windows?",
        "On SIGINT?",
        "Why is wireless internet not allowed there?",
        "What else does the server log to the disk?",
    ],
)
def test_a_question_with_a_connective_or_a_pronoun_or_of_few_words_is_a_follow_up(question: str) -> None:
    assert is_follow_up(question)
    assert resolve_question(question, turns(FIRST)) == f"{FIRST} {question}"


@pytest.mark.parametrize(
    "question",
    [
        FIRST,
        "Is it possible to change the port of the server?",
        "Which option sets the port that the server listens on?",
        "How often are API keys rotated?",
        "What does the item limit do?",
        "Are there limits on the size of uploads?",
        "What does --mlock do?",
        "What does SIGHUP do?",
    ],
)
def test_a_question_that_says_what_it_is_about_is_unchanged(question: str) -> None:
    assert not is_follow_up(question)
    assert resolve_question(question, turns(FIRST)) == question


def test_lines_are_scored_for_the_question_with_its_topic() -> None:
    history = turns(FIRST, "And how do I turn it off?")
    assert with_topic("Does the server need it?", history) == "Does the server need it? (turn debug mode)"
    assert with_topic(FIRST, history) == FIRST
    assert with_topic("Why?", ()) == "Why?"


def test_the_first_question_is_unchanged() -> None:
    assert resolve_question("Why?", ()) == "Why?"
    assert resolve_question("Why?", [{"role": "system", "content": FIRST}]) == "Why?"


def test_a_follow_up_of_a_follow_up_refers_to_the_question_before_both() -> None:
    history = turns("What is a colony of bees?", FIRST, "And how do I turn it off?")
    assert resolve_question("Is it on by default?", history) == f"{FIRST} Is it on by default?"


OFF = "And how do I turn it off?"


class Writer:
    """A model that generates one text, whatever it is asked."""

    def __init__(self, text: str) -> None:
        self.text = text

    def generate(self, prompt: object, **parameters: object) -> object:
        """Return a completion of this text."""
        return SimpleNamespace(text=self.text)


def rewritten(text: str) -> str:
    return rewrite_question(Writer(text), OFF, turns(FIRST))  # type: ignore[arg-type]


def test_the_models_rewriting_is_used_if_it_is_the_question_in_other_words() -> None:
    text = "How do I turn the debug mode of the server off?"
    assert rewritten(f" {text}") == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        FIRST,
        "You turn it off with --no-debug.",
        "You rewrite the last question of a conversation so that it can be understood?",
        "How do I turn off the heating of the greenhouse in winter?",
    ],
)
def test_nothing_an_answer_a_repetition_or_an_invention_is_not_searched_for(text: str) -> None:
    assert not is_rewriting(text, OFF, [FIRST, "Run it with --debug."])
    assert rewritten(text) == resolve_question(OFF, turns(FIRST))


QUOTED = "The debug mode writes every request into the log."
NEAR = (
    Passage.at("server.md", 0, f"{QUOTED} Use it rarely.", {"title": "Debugging"}),
    Passage.at("server.md", 99, "It is off by default.", {"title": "Debugging"}),
    Passage.at("server.md", 150, "The port is 8000.", {"title": "Ports"}),
    Passage.at("queue.md", 0, "Debug mode is for queues, too.", {"title": "Debugging"}),
)


def test_lines_near_the_previous_answer_are_more_relevant_to_a_follow_up() -> None:
    history: list[Message] = [{"role": "user", "content": FIRST}, {"role": "assistant", "content": f"[3] {QUOTED}"}]
    gains = [continuity(history, NEAR)[passage.id] for passage in NEAR]
    assert gains[0] == gains[1] > gains[2] > 0 > gains[3]


def test_a_refusal_or_an_answer_from_elsewhere_favours_no_passage() -> None:
    for text in ("The passages do not say.", "It is what nobody has written down so far."):
        history: list[Message] = [{"role": "user", "content": FIRST}, {"role": "assistant", "content": text}]
        assert set(continuity(history, NEAR).values()) == {0}
    assert set(continuity((), NEAR).values()) == {0}
