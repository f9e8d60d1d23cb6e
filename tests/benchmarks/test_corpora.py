"""The corpora of the answer benchmarks: their questions can be answered from their documents."""

from __future__ import annotations

from pathlib import Path

from antiphon.retrieval import load_documents
from benchmarks.answers import SpanQuestion, load_span_questions

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
