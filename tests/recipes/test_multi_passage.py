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
    WrittenQuestion,
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


def test_a_lesson_is_the_same_for_the_same_number_and_seed(documents: Path, examples: MultiPassageExamples) -> None:
    again = MultiPassageExamples(read_corpus([documents]), seed=3)
    other = MultiPassageExamples(read_corpus([documents]), seed=4)
    assert [again.example(number) for number in range(10)] == [examples.example(number) for number in range(10)]
    assert [other.example(number) for number in range(10)] != [examples.example(number) for number in range(10)]


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


def test_lessons_differ_in_passages_and_in_their_order(examples: MultiPassageExamples) -> None:
    made = [examples.example(number) for number in range(60)]
    assert {len(example.passages) for example in made} == {1, 2, 3, 4, 5}
    answers = {quote.number for example in made for question in example.questions for quote in question.quotes}
    assert answers >= {1, 2, 3, 4}


def test_some_lessons_have_passages_of_a_few_sentences_and_decline_what_was_cut_off(documents: Path) -> None:
    passages = read_corpus([documents])
    [whole] = [one for one in passages if page_name(one) == "bees/honey"]
    first, second, third = (quote.sentence for quote in quotable_lines([whole])[0])
    answers = {
        "who writes when honey is gone": (first,),
        "where do honey sellers come from": (third,),
        "what of marks and of neighbours": (second, third),
    }
    written = [WrittenQuestion("bees/honey", question, answer, answer) for question, answer in answers.items()]
    examples = MultiPassageExamples(passages, written, seed=3, short=0.3)
    made = [examples.example(number, is_written=True) for number in range(200)]
    short = [example for example in made if all(passage not in passages for passage in example.passages)]
    assert 20 < len(short) < 70
    seen = set()
    for example in short:
        [honey] = [passage for passage in example.passages if page_name(passage) == "bees/honey"]
        assert honey.text == whole.text[honey.start - whole.start : honey.end - whole.start]
        for question in example.questions:
            if answer := answers.get(question.text):
                said = tuple(quote.sentence for quote in question.quotes)
                left = [sentence for sentence in answer if sentence in honey.text]
                assert (said == answer and len(left) == len(answer)) or (not said and not left)
                seen.add((question.text, bool(said)))
    assert len(seen) == 6  # three questions, each answered if its sentences were kept and declined otherwise


def test_folders_with_written_questions_take_turns(documents: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "moon.txt").write_text("The moon needs four weeks for one turn around us.", encoding="utf-8")
    passages = read_corpus([documents, tmp_path])
    places = {page_name(passage): quotable_lines([passage])[0][0].sentence for passage in passages}
    written = [WrittenQuestion(name, f"what of {name}", (place,), (place,)) for name, place in places.items()]
    examples = MultiPassageExamples(passages, written, seed=3)
    made = [examples.example(number, is_written=True) for number in range(60)]
    about_moon = sum(any(page_name(passage) == "notes/moon" for passage in example.passages) for example in made)
    assert about_moon > 22  # folders take turns, so half are about the only passage of "notes"


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


def test_what_people_asked_comes_into_the_lessons_of_its_passage(documents: Path) -> None:
    passages = read_corpus([documents])
    sentence = next(one.text for one in passages if page_name(one) == "bees/honey").split(". ")[0] + "."
    written = [
        WrittenQuestion("bees/honey", "who writes when honey is gone", (sentence,), (sentence,)),
        WrittenQuestion("bees/honey", "how old is honey", (), (sentence,)),
        WrittenQuestion("bees/none", "what is not there", ("Nothing.",), ("Nothing.",)),
    ]
    examples = MultiPassageExamples(passages, written, seed=3)
    assert [page_name(passages[anchor]) for anchor in examples.anchors] == ["bees/honey"]
    asked = {
        question.text: question
        for number in range(20)
        for question in examples.example(number, is_written=True).questions
    }
    assert [quote.sentence for quote in asked["who writes when honey is gone"].quotes] == [sentence]
    assert asked["how old is honey"].quotes == ()
    assert "what is not there" not in asked


def test_an_answer_has_one_numbered_quote_per_line() -> None:
    quotes = (Quote(2, "Bees dance."), Quote(1, "Wax melts."))
    assert Question("?", quotes).answer == "[2] Bees dance.\n[1] Wax melts."
    assert Question("?").answer == REFUSAL


def test_pages_are_held_out_by_name_alone(documents: Path) -> None:
    passages = read_corpus([documents])
    elsewhere = {page_name(passage): is_held_out(passage) for passage in passages}
    assert elsewhere == {page_name(passage): is_held_out(passage) for passage in reversed(passages)}
    names = [f"python/{number}" for number in range(2000)]
    held = sum(is_held_out(type(passages[0]).at(f"{name}.txt", 0, "x")) for name in names)
    assert 100 < held < 220  # 160 expected, of a binomial whose standard deviation is 12


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
