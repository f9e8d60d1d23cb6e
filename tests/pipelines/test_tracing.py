"""Traces of answers in Python: their stages, attributes, durations and errors, and that they contain no text."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from typer.testing import CliRunner

from antiphon.accel import LanguageModel
from antiphon.pipelines import Rag
from antiphon.pipelines.cli import app
from antiphon.pipelines.tracing import Span, start_traces, use_tracer_provider
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


STAGES = ["retrieve", "embed", "search", "rerank", "prompt"]


@pytest.fixture(autouse=True)
def _not_traced_afterwards() -> Iterator[None]:
    yield
    use_tracer_provider(None)


@pytest.fixture
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """A collector at a free port: its address, and the requests that it has received."""
    received: list[ExportTraceServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/v1/traces":
                received.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Write no log."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", received
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_collector_receives_the_spans_of_an_answer(
    index_folder: Path, collector: tuple[str, list[ExportTraceServiceRequest]]
) -> None:
    address, received = collector
    variables = {
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": address,
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
    }
    command = [sys.executable, "-m", "antiphon.pipelines.cli", "ask", QUESTION, "--index", str(index_folder)]
    subprocess.run(command, env=os.environ | variables, check=True, capture_output=True)
    [resource] = [each for request in received for each in request.resource_spans]
    values = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert (values["service.name"], values["deployment.environment.name"]) == ("antiphon", "test")
    names = [span.name for scope in resource.scope_spans for span in scope.spans]
    assert sorted(names) == sorted(["answer", *STAGES, "chat extractive", "cite"])


def test_ask_prints_its_trace_on_standard_error(index_folder: Path) -> None:
    shown = CliRunner().invoke(app, ["ask", QUESTION, "--index", str(index_folder), "--trace", "console"])
    assert shown.exit_code == 0, shown.stderr
    lines = [line.split() for line in shown.stderr.splitlines() if line.rpartition(" ms")[0].strip()[-1:].isdigit()]
    found = [line[1:] for line in lines if re.fullmatch("[0-9a-f]{8}", line[0])]
    assert [line[0] for line in found] == ["embed", "search", "rerank", "retrieve", "prompt", "chat", "cite", "answer"]
    assert len({line[0] for line in lines}) == 1
    assert "passages=3" in found[3]
    assert "embed" not in shown.stdout


def test_the_variable_of_opentelemetry_is_the_default_of_the_option(
    index_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    shown = CliRunner().invoke(app, ["ask", QUESTION, "--index", str(index_folder)])
    assert "There is no exporter of traces 'zipkin'; choose 'otlp', 'console' or" in shown.stderr
    start_traces("none")
    assert not Span("answer").is_recorded
