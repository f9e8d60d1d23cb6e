"""The corpora of the answer benchmarks: their questions can be answered from their documents."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from antiphon.retrieval import load_documents
from benchmarks.answers import SpanQuestion, load_span_questions, trace_answers
from benchmarks.office_files import CORPUS, write_office_corpus
from benchmarks.package_docs import CONVERSATIONS, DOCUMENTS, QUESTIONS, extract_documents

CORPORA = Path(__file__).parents[2] / "benchmarks" / "corpora"


def expect_spans(folder: Path) -> None:
    """Check that the first span of each question is in its document."""
    documents = load_documents([folder]).documents
    for asked in load_span_questions(folder):
        if asked.source is not None:
            start = str(folder / asked.corpus / asked.source)
            alone = SpanQuestion(asked.corpus, asked.question, asked.source, asked.spans[:1])
            assert any(alone.is_in(each.text) for each in documents if each.source.startswith(start)), asked


def test_every_expected_span_is_in_its_document() -> None:
    expect_spans(CORPORA)


@pytest.mark.exhaustive
def test_office_files_are_read_and_nine_of_ten_questions_find_their_passage(tmp_path: Path) -> None:
    write_office_corpus(tmp_path)
    expect_spans(tmp_path)
    questions = load_span_questions(tmp_path)
    assert {asked.corpus for asked in questions} == {CORPUS}
    traces = trace_answers(questions, tmp_path, embedder="minilm", language_model=None)
    assert (len(traces), sum(trace.is_found(5) for trace in traces) >= 27) == (30, True)


def test_only_documents_below_the_folder_are_extracted(tmp_path: Path) -> None:
    names = ("p-1/docs/a.md", "p-1/docs/sub/b.rst", "p-1/docs/c.png", "p-1/d.md", "p-1/docs/../../e.md")
    with tarfile.open(tmp_path / "p-1.tar.gz", "w:gz") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 2
            tar.addfile(member, io.BytesIO(b"hi"))
    extract_documents(tmp_path / "p-1.tar.gz", "docs", tmp_path / "out")
    written = [
        str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.suffix in (".md", ".rst", ".png")
    ]
    assert sorted(written) == ["out/a.md", "out/sub/b.rst"]


def test_each_package_has_18_answerable_and_6_other_questions_and_conversations_have_answers() -> None:
    questions = [SpanQuestion(**json.loads(line)) for line in QUESTIONS.read_text(encoding="utf-8").splitlines()]
    for corpus in DOCUMENTS:
        own = [asked for asked in questions if asked.corpus == corpus]
        assert [sum(asked.is_answerable is kind for asked in own) for kind in (True, False)] == [18, 6], corpus
    turns = [json.loads(line) for line in CONVERSATIONS.read_text(encoding="utf-8").splitlines()]
    assert all(turn["corpus"] in DOCUMENTS and len(turn["turns"]) == 2 and turn["phrases"] for turn in turns)
