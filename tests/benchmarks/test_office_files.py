"""The corpus of Office files, e-mail and a scanned PDF: its questions can be answered, and their passages are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.retrieval import load_documents
from benchmarks.answers import SpanQuestion, load_span_questions, trace_answers
from benchmarks.office_files import CORPUS, write_office_corpus

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("office")
    write_office_corpus(folder)
    return folder


def test_every_expected_span_is_read_from_its_file(corpus: Path) -> None:
    documents = load_documents([corpus / CORPUS]).documents
    questions = load_span_questions(corpus)
    assert len(questions) == 30
    for asked in questions:
        texts = [each.text for each in documents if each.source.startswith(str(corpus / CORPUS / str(asked.source)))]
        alone = SpanQuestion(asked.corpus, asked.question, asked.source, asked.spans[:1])
        assert any(alone.is_in(text) for text in texts), asked


def test_nine_of_ten_questions_find_their_passage_among_the_first_five(corpus: Path) -> None:
    traces = trace_answers(load_span_questions(corpus), corpus, embedder="minilm", language_model=None)
    assert sum(trace.is_found(5) for trace in traces) >= 27
