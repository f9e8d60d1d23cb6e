"""Training examples of the reader: their answers are lines of their passages, and the written questions fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.pipelines.quotes import quotable_lines
from antiphon.retrieval import Passage
from recipes.reader.corpus import is_held_out, page_name, read_corpus
from recipes.reader.debian_docs import BUNDLED_TEXTS, write_texts
from recipes.reader.multi_passage import MultiPassageExamples
from recipes.reader.single_passage import SinglePassageExamples
from recipes.reader.written_questions import HELD_OUT_QUESTIONS, WRITTEN_QUESTIONS, load_written_questions

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


OPTIONS = Passage.at(
    "docs/options.md",
    0,
    "## Options\n\n- `mast`: Sets the height of the mast. Default: 9\n- `keel`: Removes the keel.\n\n"
    "| Option | Type | Meaning |\n|---|---|---|\n| anchor | iron | Stops the boat in a storm |\n",
    {"title": "Boats > Options"},
)
SAILS = Passage.at(
    "other/sails.md",
    0,
    "## Sails\n\n- `jib`: Sets the size of the jib. Default: 4\n- `main`: Removes the boom of the mast.\n",
    {"title": "Rigging > Sails"},
)
BOATS = [
    Passage.at(f"docs/{name}.md", 0, f"A {name} is a boat with {count} masts. The {name} mast is tall.")
    for name, count in (("ketch", "two"), ("schooner", "three"), ("clipper", "many"))
]


@pytest.mark.parametrize("make", [MultiPassageExamples, SinglePassageExamples])
def test_answers_are_lines_of_the_passages_and_other_questions_are_declined(
    make: type[MultiPassageExamples] | type[SinglePassageExamples], documents: Path
) -> None:
    passages = [*read_corpus([documents]), OPTIONS, SAILS, *BOATS]
    examples, again = make(passages, seed=3), make(passages, seed=3)
    declined = 0
    for number in range(60):
        example = examples.example(number)
        lines = {line for own in quotable_lines(example.passages) for line in own}
        assert any(question.quotes for question in example.questions)
        for question in example.questions:
            assert lines.issuperset(question.quotes)
            declined += not question.quotes
    assert declined > 5
    assert examples.example(3) == again.example(3)


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


def test_the_written_questions_can_be_read_and_quote_their_place() -> None:
    written = load_written_questions(WRITTEN_QUESTIONS)
    assert len(written) > 1000
    assert all(set(one.sentences) <= set(one.place) for one in written if one.sentences)
    assert sum(not one.sentences for one in written) > 100
