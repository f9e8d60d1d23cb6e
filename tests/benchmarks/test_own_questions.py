"""Questions about own corpora: every question gets a verdict, and a conversation asks its first question first."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from antiphon.accel import LanguageModel
from benchmarks.own_questions import AskedQuestion, ask_questions, question_figures

EGGS = {"corpus": "bees", "source": "a.md", "spans": ["two thousand eggs"], "phrases": ["two thousand"]}
RIGHT = AskedQuestion("bees", (), "?", ("x",), "right", True, "x", "?", ("a.md",), ("x",), 1, 0.5, 2.0)


def write_corpus(folder: Path) -> None:
    """Write a corpus of one sentence with an answerable and an unanswerable question and a conversation."""
    (folder / "bees").mkdir()
    (folder / "bees" / "a.md").write_text("A queen lays two thousand eggs a day.\n", encoding="utf-8")
    questions = [EGGS | {"question": "How many eggs?"}, EGGS | {"question": "Who?", "spans": [], "phrases": []}]
    (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, questions)), encoding="utf-8")
    turn = EGGS | {"turns": ["What lays a queen?", "And how many of them?"]}
    (folder / "conversations.jsonl").write_text(json.dumps(turn), encoding="utf-8")


@pytest.mark.exhaustive
def test_every_question_is_asked_and_its_passage_is_found(tmp_path: Path, typist: LanguageModel) -> None:
    write_corpus(tmp_path)
    asked = list(ask_questions(tmp_path, typist, embedder="hash", max_new_tokens=8))
    assert [(one.before, one.question) for one in asked] == [
        ((), "How many eggs?"),
        ((), "Who?"),
        (("What lays a queen?",), "And how many of them?"),
    ]
    assert [one.is_found for one in asked] == [True, False, True]
    assert [one.verdict for one in asked] == ["wrong", "answered", "wrong"], "a random model knows nothing"
    assert all(one.sources[0].startswith("a.md:") and one.first_s <= one.seconds for one in asked)


def test_the_figures_count_answerable_and_other_questions_apart() -> None:
    declined = replace(RIGHT, verdict="declined", is_found=False)
    other = replace(RIGHT, expected=(), verdict="declined")
    row = question_figures("bees", [RIGHT, declined, other, replace(other, verdict="answered")])
    assert (row["right"], row["wrong"], row["declined"], row["recall@5"]) == (0.5, 0, 0.5, 0.5)
    assert (row["unanswerable_declined"], row["seconds"]) == (0.5, 2.0)
