"""Training examples of the reader: their answers are lines of their passages, and the written questions fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.pipelines.data.demo import demo_documents
from antiphon.pipelines.quotes import quotable_lines
from recipes.reader.corpus import is_held_out, page_name, read_corpus
from recipes.reader.debian_docs import BUNDLED_TEXTS, write_texts
from recipes.reader.multi_passage import MultiPassageExamples
from recipes.reader.single_passage import SinglePassageExamples
from recipes.reader.written_questions import HELD_OUT_QUESTIONS, WRITTEN_QUESTIONS, load_written_questions

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("make", [MultiPassageExamples, SinglePassageExamples])
def test_answers_are_lines_of_the_passages_and_other_questions_are_declined(
    make: type[MultiPassageExamples] | type[SinglePassageExamples],
) -> None:
    examples, again = (make(read_corpus(demo_documents()[1:3]), seed=3) for _ in range(2))
    declined = 0
    for example in map(examples.example, range(30)):
        lines = {line for own in quotable_lines(example.passages) for line in own}
        assert any(question.quotes for question in example.questions)
        assert all(lines.issuperset(question.quotes) for question in example.questions)
        declined += sum(not question.quotes for question in example.questions)
    assert declined > 2
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
