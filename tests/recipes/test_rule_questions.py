"""Questions made by rule: each is answered by the sentence it was made from."""

from __future__ import annotations

from random import Random

import pytest

from antiphon.pipelines.quotes import quoted_form
from recipes.reader.rule_questions import quotable, sentence_questions
from recipes.reader.typing_noise import add_typing_noise

SENTENCES = {
    "If the file is missing, a FileNotFoundError is raised.": "What happens if the file is missing?",
    "A hive is a box in which a colony of honey bees lives.": "What is a hive?",
    "os.listdir(path): Return the names of the entries of a directory.": "What does os.listdir do?",
    "The cursor can be closed before the transaction ends.": "Can the cursor be closed before the transaction ends?",
    "To see what a hive weighs, put it on a scale.": "How do I see what a hive weighs?",
    "The mode argument specifies how the file is opened by the server.": "What does the mode argument specify?",
    "Wax is yellow because bees bring pollen of that colour home.": "why wax is yellow?",
    "The parser raises a KeyError when no such name is known to the table.": "When is KeyError raised?",
}


def _texts(sentence: str) -> set[str]:
    """Every question that any seed makes of a sentence, without haste."""
    return {asked.text for seed in range(200) for asked in sentence_questions(sentence, Random(seed))}


@pytest.mark.parametrize(("sentence", "question"), SENTENCES.items(), ids=SENTENCES.values())
def test_a_sentence_gives_the_question_that_it_answers(sentence: str, question: str) -> None:
    assert question in _texts(sentence)


def test_the_answer_is_the_sentence_as_it_stands() -> None:
    text = "Bees\n\nIf a hive is opened in winter, the colony loses its warmth. Nothing else is known here."
    answers = {asked.sentences for seed in range(50) for asked in sentence_questions(text, Random(seed))}
    assert all(sentence in text for answer in answers for sentence in answer)
    assert ("If a hive is opened in winter, the colony loses its warmth.",) in answers


def test_no_rule_asks_about_a_sentence_that_refers_to_the_previous_one() -> None:
    assert sentence_questions("This is a thing that can be used to open a file in a hurry.", Random(0)) == []


def test_a_list_is_answered_by_its_items_without_their_marks() -> None:
    text = "A colony has two kinds of females:\n- workers, which do all the work\n- a queen, which lays the eggs"
    asked = [one for one in sentence_questions(text, Random(0)) if one.kind == "list"]
    assert [one.sentences for one in asked] == [("workers, which do all the work", "a queen, which lays the eggs")]


@pytest.mark.parametrize(
    "sentence",
    [
        "Bees",
        "The following kinds are known:",
        "x = open(path, 'w') # writes.",
        "To open one:\n    door.open(1, 2, 3).",
    ],
)
def test_headings_fragments_and_listings_are_not_quotable(sentence: str) -> None:
    assert not quotable(sentence)


def test_a_sentence_that_is_wrapped_over_lines_is_quoted_on_one() -> None:
    wrapped = "- Workers do all\nthe work of a  hive."
    assert quotable(wrapped)
    assert quoted_form(wrapped) == "Workers do all the work of a hive."


def test_the_mark_of_an_item_is_no_part_of_its_quote() -> None:
    assert quoted_form("- first of all") == "first of all"
    assert quoted_form("12. first of all") == "first of all"
    assert quoted_form("-x is an option") == "-x is an option"


def test_typing_noise_is_deterministic_and_never_empties_a_question() -> None:
    question = "How do I delete a directory?"
    typed = [add_typing_noise(question, Random(seed)) for seed in range(300)]
    assert typed == [add_typing_noise(question, Random(seed)) for seed in range(300)]
    assert question in typed
    assert len(set(typed)) > 10
    assert all(len(one.split()) == 6 for one in typed)
