"""`MultiPassageExamples`: answerable questions are answered by exactly one passage, declined ones by none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from antiphon.pipelines.prompt import REFUSAL, reader_prompt
from antiphon.pipelines.quotes import Quote, quotable_lines
from recipes.reader.corpus import is_held_out, page_name, read_corpus
from recipes.reader.debian_docs import BUNDLED_TEXTS, write_texts
from recipes.reader.example import Question
from recipes.reader.multi_passage import MultiPassageExamples
from recipes.reader.written_questions import (
    HELD_OUT_QUESTIONS,
    WRITTEN_QUESTIONS,
    load_written_questions,
)

PAGES = {
    "hive": "opened winter colony loses warmth wooden painted keeper Lyon",
    "queen": "crowned summer workers obey scent royal marked breeder Graz",
    "drone": "evicted autumn cousins starve quickly stingless noisy observer Turin",
    "swarm": "startled evening scouts circle chimney hungry golden catcher Porto",
    "honey": "heated kitchen enzymes vanish forever creamy amber merchant Athens",
    "pollen": "soaked morning baskets overflow slightly dusty orange allergist Oslo",
    "smoker": "emptied meadow embers ignite grass smoky copper tinsmith Dublin",
    "frame": "broken journey combs collapse sideways narrow waxed carpenter Krakow",
}


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documents") / "bees"
    folder.mkdir()
    for subject, words in PAGES.items():
        done, when, whose, does, how, one, two, person, city = words.split()
        (folder / f"{subject}.txt").write_text(
            f"If a {subject} is {done} every {when}, {whose} of {city} {does} {how}. "
            f"The {one} {subject} contains {two} marks that any {person} counts. "
            f"A {person} is a neighbour whose {subject} was bought from {city}.\n",
            encoding="utf-8",
        )
    return folder


@pytest.fixture(scope="module")
def examples(documents: Path) -> MultiPassageExamples:
    return MultiPassageExamples(read_corpus([documents]), seed=3)


def test_every_quote_is_a_line_of_the_prompt(examples: MultiPassageExamples) -> None:
    for number in range(60):
        example = examples.example(number)
        quotes = [quote for question in example.questions for quote in question.quotes]
        assert quotes
        turn = reader_prompt("", example.passages).content[-1]
        assert not isinstance(turn, str)
        assert {quote.line for quote in quotes} <= set(turn["content"].splitlines())


def test_what_is_declined_belongs_to_a_passage_that_the_lesson_has_not(examples: MultiPassageExamples) -> None:
    declined = 0
    for number in range(60):
        example = examples.example(number)
        text = " ".join(passage.text for passage in example.passages).lower()
        for question in example.questions:
            if not question.quotes:
                declined += 1
                assert question.answer == REFUSAL
                words = [word for word in question.text.lower().strip("?").split() if len(word) > 4]
                assert not all(word in text for word in words), question.text
    assert declined > 20


def test_the_everyday_texts_are_written_as_files_that_the_questions_know(tmp_path: Path) -> None:
    folder = tmp_path / "everyday"
    folder.mkdir()
    (folder / "old.md").write_text("It is gone now.", encoding="utf-8")
    count = write_texts(BUNDLED_TEXTS["everyday"], folder)
    passages = read_corpus([tmp_path / "everyday"])
    assert len({page_name(passage) for passage in passages}) == count > 100
    lines = {quote.sentence for passage in passages for quote in quotable_lines([passage])[0]}
    pages = {page_name(passage) for passage in passages}
    for file in (WRITTEN_QUESTIONS, HELD_OUT_QUESTIONS):
        about = [one for one in load_written_questions(file) if one.page.startswith("everyday/")]
        assert {one.page for one in about} <= pages
        assert {sentence for one in about for sentence in one.place} <= lines
        is_kept = {is_held_out(passage) for passage in passages if page_name(passage) in {one.page for one in about}}
        assert is_kept == {file != WRITTEN_QUESTIONS}


def test_an_answer_has_one_numbered_quote_per_line() -> None:
    quotes = (Quote(2, "Bees dance."), Quote(1, "Wax melts."))
    assert Question("?", quotes).answer == "[2] Bees dance.\n[1] Wax melts."
    assert Question("?").answer == REFUSAL


def test_the_written_questions_can_be_read_and_quote_their_place() -> None:
    written = load_written_questions(WRITTEN_QUESTIONS)
    assert len(written) > 1000
    assert all(set(one.sentences) <= set(one.place) for one in written if one.sentences)
    assert sum(not one.sentences for one in written) > 100


def test_a_line_that_is_not_a_question_is_reported_by_number(tmp_path: Path) -> None:
    path = tmp_path / "written.jsonl"
    good = {"page": "a/b", "question": "q", "answer": [], "place": []}
    path.write_text(json.dumps(good) + "\n" + json.dumps({"page": "a/b"}) + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 2 is no question"):
        load_written_questions(path)
