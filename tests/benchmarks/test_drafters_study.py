"""Drafter study: one command over answers, summaries and chat, and its section of the benchmark page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from antiphon.pipelines.benchmark.samples import RecordedSample
from benchmarks import drafters
from benchmarks.page import read_results, render_page
from benchmarks.record import as_line
from tests.pipelines.recorded import SAMPLES, run_program

pytestmark = pytest.mark.slow

METHODS = ["hf-greedy", "blend", "blend+lookahead", "auto"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{as_line(sample)}\n" for sample in SAMPLES), encoding="utf-8")
    return path


@pytest.mark.exhaustive
def test_every_drafter_decodes_answers_summaries_and_chat(file: Path, tiny_folder: Path, tmp_path: Path) -> None:
    named = [part for method in METHODS[1:] for part in ("--method", method)]
    options = ("--num-draft-tokens", 16, "--limit", 2, "--passages", 1, "--max-new-tokens", 8, "--json")
    shown = run_program(drafters.app, file, "--model", tiny_folder, *options, *named)
    assert shown.exit_code == 0, shown.stderr
    facts = json.loads(shown.stdout.splitlines()[-1])
    assert list(facts["sets"]) == ["rag", "summarization", "chat"]
    for found in facts["sets"].values():
        assert [each["method"] for each in found] == METHODS
        assert all(each["identical"] == 1 for each in found)
    (tmp_path / "stored.jsonl").write_text(json.dumps(facts), encoding="utf-8")
    page = render_page(read_results([tmp_path / "stored.jsonl"]))
    assert "| drafter | rag | summarization | chat |" in page
    assert "all outputs identical to greedy decoding" in page
    assert all(f"| {method} | " in page for method in METHODS)


def test_passages_of_questions_are_summarized_if_the_file_has_no_summaries(file: Path, tmp_path: Path) -> None:
    kinds = drafters.samples_of(str(file), 5)
    assert [len(kinds[kind]) for kind in ("rag", "summarization", "chat")] == [2, 2, 5]
    assert {each.query for each in kinds["summarization"]} == {drafters.SUMMARIZE}
    assert [each.references for each in kinds["summarization"]] == [each.references for each in kinds["rag"]]
    own = RecordedSample("4", "summarization", "Sum it up.", ("Long.",), "Long. Sum it up.", "Long.")
    with file.open("a", encoding="utf-8") as lines:
        lines.write(as_line(own) + "\n")
    assert [each.references for each in drafters.samples_of(str(file), 5)["summarization"]] == [("Long.",)]
