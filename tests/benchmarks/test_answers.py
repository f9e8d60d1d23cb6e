"""Answer benchmark: the shipped questions can be answered from their documents, and each loss has one stage."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from antiphon.retrieval import load_documents
from benchmarks.answers import (
    AnswerTrace,
    SpanQuestion,
    answer_figures,
    app,
    load_span_questions,
)
from tests.pipelines.recorded import run_program

CORPORA = Path(__file__).parents[2] / "benchmarks" / "corpora"
ASKED = SpanQuestion("bees", "How many eggs?", "a.md", ("two thousand eggs",))
NOBODY = SpanQuestion("bees", "Who made it?", None, ())


def test_every_expected_span_is_in_its_document() -> None:
    texts = {document.source: document.text for document in load_documents([CORPORA]).documents}
    for asked in load_span_questions(CORPORA):
        if asked.source is not None:
            own = texts[str(CORPORA / asked.corpus / asked.source)]
            assert SpanQuestion(asked.corpus, asked.question, asked.source, asked.spans[:1]).is_in(own), asked


def test_a_span_is_found_over_line_breaks_hyphens_and_marks() -> None:
    assert ASKED.is_in("| two thou-\nsand | **eggs** |")
    assert not ASKED.is_in("two hundred eggs")


def test_an_answer_is_right_with_70_percent_of_the_expected_words() -> None:
    asked = SpanQuestion("bees", "?", "a", ("one two three four five six seven eight nine ten",))
    assert asked.is_answered_by("ten nine eight seven six five FOUR")
    assert not asked.is_answered_by("ten nine eight seven six five")


def test_an_answer_with_expected_phrases_is_right_if_it_has_all_of_them_in_whole_words() -> None:
    asked = SpanQuestion("bees", "?", "a", ("ten eggs on 19 January",), ("19 Jan|19 January", "not `thread safe`"))
    assert asked.is_answered_by("On 19\nJanuary it is *not* thread safe.")
    assert not asked.is_answered_by("On 119 January it is *not* thread safe.")
    assert not asked.is_answered_by("On 19 January it is thread safe.")


@pytest.mark.parametrize(
    ("cut", "rank", "quotable", "text", "lost"),
    [
        (False, 1, 1, "Two thousand eggs.", ""),
        (True, None, None, "No.", "chunking"),
        (False, None, None, "No.", "retrieval"),
        (False, 4, 4, "No.", "retrieval"),
        (False, 2, None, "No.", "prompt"),
        (False, 2, 2, "No.", "reader"),
    ],
)
def test_a_lost_answer_has_one_stage(cut: bool, rank: int | None, quotable: int | None, text: str, lost: str) -> None:
    assert AnswerTrace(ASKED, cut, rank, quotable, 3, text).lost_at == lost


def test_the_figures_count_the_answerable_and_the_others_apart() -> None:
    right = AnswerTrace(ASKED, False, 1, 1, 3, "two thousand eggs")
    declined = AnswerTrace(ASKED, False, 4, 4, 3, "The passages do not say.")
    refused = AnswerTrace(NOBODY, False, None, None, 3, "The passages do not say.")
    row, every = answer_figures([right, declined, refused])
    assert row | {"corpus": "all"} == every
    assert (row["answerable"], row["unanswerable"], row["recall@3"], row["recall@5"]) == (2, 1, 0.5, 1.0)
    assert (row["right"], row["wrongly_declined"], row["declined"], row["lost_retrieval"]) == (0.5, 0.5, 1.0, 1)


@pytest.mark.exhaustive
def test_the_program_traces_questions_through_an_index(tmp_path: Path) -> None:
    (tmp_path / "bees").mkdir()
    (tmp_path / "bees" / "a.md").write_text("# Queens\n\nA queen lays two thousand eggs.\n")
    questions = [asdict(asked) for asked in (ASKED, NOBODY)]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, questions)), encoding="utf-8")
    shown = run_program(app, tmp_path, "--model", "none", "--json")
    assert shown.exit_code == 0, shown.stderr
    row, every = json.loads(shown.stdout)["corpora"]
    assert row | {"corpus": "all"} == every
    assert (row["answerable"], row["unanswerable"], row["cut"], row["recall@3"]) == (1, 1, 0, 1.0)
    assert "right" not in row
