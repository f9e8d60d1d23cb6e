"""Traces of answers in Python: their stages, attributes, durations and errors, and that they contain no text."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from antiphon.accel import LanguageModel
from antiphon.pipelines import Rag
from antiphon.pipelines.tracing import Span
from antiphon.retrieval import HashEmbedder, Passage, Retriever, index_passages
from tests.pipelines.recorded_spans import are_consecutive, attributes, named, recorded_spans, seconds, texts, tree

QUESTION = "How many eggs does a queen lay?"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    with recorded_spans() as exporter:
        yield exporter


@pytest.fixture(scope="module")
def rag(retriever: Retriever, typist: LanguageModel) -> Rag:
    return Rag(retriever, typist, k=2)


def test_an_answer_has_a_span_for_each_stage(spans: InMemorySpanExporter, rag: Rag) -> None:
    rag.ask(QUESTION, max_new_tokens=16)
    assert tree(spans.get_finished_spans()) == {
        "answer": ["retrieve", "prompt", "chat typist", "cite"],
        "retrieve": ["embed", "search", "rerank"],
        "chat typist": ["prefill", "decode"],
    }
    assert len({span.context.trace_id for span in spans.get_finished_spans()}) == 1


def test_attributes_are_the_figures_of_the_answer(spans: InMemorySpanExporter, rag: Rag) -> None:
    answer = rag.ask(QUESTION, max_new_tokens=16, temperature=0.5, seed=7)
    found = spans.get_finished_spans()
    chat, decode = attributes(named(found, "chat typist")), attributes(named(found, "decode"))
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "antiphon",
        "gen_ai.request.model": "typist",
        "gen_ai.response.model": "typist",
        "gen_ai.request.max_tokens": 16,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 7,
        "gen_ai.usage.input_tokens": answer.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": answer.usage.completion_tokens,
        "gen_ai.response.finish_reasons": (answer.finish_reason,),
        "antiphon.refusal": answer.is_refusal,
    }
    assert {name: chat[name] for name in expected} == expected
    assert decode["antiphon.forward_passes"] == answer.steps.steps > 0
    assert decode["antiphon.drafted_tokens"] == answer.steps.drafted
    assert decode["antiphon.accepted_tokens"] == answer.steps.accepted
    assert decode["antiphon.tokens_per_step"] == pytest.approx(answer.steps.tokens_per_step, abs=1e-3)
    assert attributes(named(found, "prefill"))["antiphon.prefill_tokens"] == answer.steps.prefill_tokens
    assert attributes(named(found, "cite"))["antiphon.citations"] == len(answer.citations)
    assert attributes(named(found, "retrieve"))["antiphon.passages"] == 2
    assert attributes(named(found, "retrieve"))["gen_ai.operation.name"] == "retrieval"


def test_stages_follow_each_other_within_the_time_of_the_answer(spans: InMemorySpanExporter, rag: Rag) -> None:
    answer = rag.ask(QUESTION, max_new_tokens=64)
    found = spans.get_finished_spans()
    assert all(are_consecutive(found, named(found, name)) for name in ("answer", "retrieve", "chat typist"))
    assert seconds(named(found, "prefill")) == pytest.approx(answer.steps.prefill_seconds, abs=0.001)


def test_a_closed_stream_ends_its_trace_as_cancelled(spans: InMemorySpanExporter, rag: Rag) -> None:
    with rag.stream(QUESTION, max_new_tokens=64) as stream:
        next(stream)
        assert "answer" not in [span.name for span in spans.get_finished_spans()]
    chat = named(spans.get_finished_spans(), "chat typist")
    assert attributes(chat)["gen_ai.response.finish_reasons"] == ("cancelled",)
    assert chat.status.status_code is StatusCode.UNSET
    assert named(spans.get_finished_spans(), "answer").status.status_code is StatusCode.UNSET


def test_a_failed_stage_has_the_type_of_the_error_and_not_its_message(spans: InMemorySpanExporter, rag: Rag) -> None:
    with pytest.raises(ValueError, match="max_new_tokens"):
        rag.ask(QUESTION, max_new_tokens=-1)
    failed = [span for span in spans.get_finished_spans() if span.status.status_code is StatusCode.ERROR]
    assert [span.name for span in failed] == ["chat typist", "answer"]
    assert {attributes(span)["error.type"] for span in failed} == {"ValueError"}
    assert [(span.status.description, span.events) for span in failed] == [(None, ())] * 2


WORDS = st.lists(st.text("bcdfghjklmnpqrstvwxz", min_size=7, max_size=9), min_size=4, max_size=8, unique=True)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=WORDS, extractive=st.booleans())
def test_no_word_of_a_document_question_or_answer_is_in_a_trace(
    typist: LanguageModel, words: list[str], extractive: bool
) -> None:
    passages = [Passage.at(f"{word}.txt", 0, f"The {word} is a {words[0]} of {words[-1]}.") for word in words]
    with TemporaryDirectory() as folder, recorded_spans() as spans:
        index_passages(passages, Path(folder) / "index", HashEmbedder())
        rag = Rag(Retriever.open(Path(folder) / "index"), None if extractive else typist, k=2)
        answer = rag.ask(f"What is a {words[1]}?", max_new_tokens=8)
    found = texts(spans.get_finished_spans())
    assert len(found) > 40
    forbidden = [*words, *(word for word in answer.text.split() if len(word) > 4 and not extractive), "bees.txt"]
    assert [text for text in found if any(word in text for word in forbidden)] == []


def test_an_answer_is_the_child_of_the_span_of_its_caller(spans: InMemorySpanExporter, rag: Rag) -> None:
    with Span("caller"):
        stream = rag.stream(QUESTION, max_new_tokens=4)
    stream.to_end()
    assert tree(spans.get_finished_spans())["caller"] == ["answer"]


def test_opentelemetry_is_not_imported_if_nothing_is_traced() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None; from antiphon.pipelines.tracing import Span, current_ids\n"
        "with Span('retrieve') as span: span.set({'a': 1}); print(span.is_recorded, current_ids())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.stdout.strip(), run.stderr) == ("False {}", "")
