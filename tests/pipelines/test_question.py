"""Questions: checked once; follow-ups are recognized, and preceded by the question that they refer to."""

from types import SimpleNamespace

import pytest

from antiphon.accel.text.messages import Message
from antiphon.pipelines.question import Question, is_follow_up, is_rewriting, rewrite_question

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
        "Why?",
        "What about Windows machines in a cluster?",
        "Which of them is the fastest one here?",
        "Does that also work for the test server?",
        "Why is wireless internet not allowed there?",
        "What else does the server log to the disk?",
    ],
)
def test_a_question_with_a_connective_or_a_pronoun_is_a_follow_up(question: str) -> None:
    assert is_follow_up(question)
    assert Question.of(question, turns(FIRST)).complete == f"{FIRST} {question}"


@pytest.mark.parametrize(
    "question",
    [
        FIRST,
        "Which option sets the port that the server listens on?",
        "How often are API keys rotated?",
        "Are there limits on the size of uploads?",
        "What does --mlock do?",
    ],
)
def test_a_question_that_says_what_it_is_about_is_unchanged(question: str) -> None:
    assert not is_follow_up(question)
    assert Question.of(question, turns(FIRST)) == Question(question)


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_question_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="The question is empty"):
        Question.of(text, turns(FIRST))


def test_a_question_that_is_not_utf_8_is_refused_with_its_bytes() -> None:
    with pytest.raises(ValueError, match=r"not UTF-8 \(b'\\xe9' after 3 characters\)"):
        Question("Caf\udce9?")


def test_a_follow_up_of_a_follow_up_refers_to_the_question_before_both() -> None:
    history = turns("What is a colony of bees?", FIRST, "And how do I turn it off?")
    assert Question.of("Is it on by default?", history).complete == f"{FIRST} Is it on by default?"


OFF = "And how do I turn it off?"


class Writer:
    """A model that generates one text, whatever it is asked."""

    def __init__(self, text: str) -> None:
        self.text = text

    def generate(self, prompt: object, **parameters: object) -> object:
        """Return a completion of this text."""
        return SimpleNamespace(text=self.text)


def rewritten(text: str) -> Question:
    history = turns(FIRST)
    return rewrite_question(Writer(text), Question.of(OFF, history), history)  # type: ignore[arg-type]


def test_the_models_rewriting_is_used_if_it_is_the_question_in_other_words() -> None:
    text = "How do I turn the debug mode of the server off?"
    assert rewritten(f" {text}") == Question(OFF, text)


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
    assert rewritten(text) == Question(OFF, f"{FIRST} {OFF}")
