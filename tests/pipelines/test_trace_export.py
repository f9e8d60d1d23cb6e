"""Where traces go: the option and the environment variables, a collector over OTLP, and the terminal."""

from __future__ import annotations

import io
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from typer.testing import CliRunner

from antiphon.accel import LanguageModel
from antiphon.pipelines import Rag, tracing
from antiphon.pipelines.cli import app
from antiphon.pipelines.cli.trace_option import start_traces
from antiphon.pipelines.trace_export import export_traces
from antiphon.retrieval import Retriever

QUESTION = "How many eggs does a queen lay?"
STAGES = ["retrieve", "embed", "search", "rerank", "prompt"]


@pytest.fixture(autouse=True)
def _not_traced_afterwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start and end without OpenTelemetry's variables and without a tracer provider."""
    for name in ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    yield
    tracing.use_tracer_provider(None)


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


def test_a_collector_receives_the_spans_of_an_answer(
    retriever: Retriever,
    typist: LanguageModel,
    collector: tuple[str, list[ExportTraceServiceRequest]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address, received = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    provider = export_traces("otlp")
    Rag(retriever, typist, k=2).ask(QUESTION, max_new_tokens=4)
    provider.shutdown()
    [resource] = [each for request in received for each in request.resource_spans]
    values = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert (values["service.name"], values["deployment.environment.name"]) == ("antiphon", "test")
    names = [span.name for scope in resource.scope_spans for span in scope.spans]
    assert sorted(names) == sorted(["answer", *STAGES, "chat typist", "prefill", "decode", "cite"])


def test_the_console_shows_a_trace_as_a_tree_of_durations(retriever: Retriever, typist: LanguageModel) -> None:
    out = io.StringIO()
    export_traces("console", out)
    Rag(retriever, typist, k=2).ask(QUESTION, max_new_tokens=16)
    title, *lines = out.getvalue().splitlines()
    assert title.startswith("trace ")
    assert [line[:40].strip() for line in lines] == ["answer", *STAGES, "chat typist", "prefill", "decode", "cite"]
    assert "100.0 %" in lines[0]
    assert "accepted_tokens=" in lines[-2]


def test_spans_that_end_after_their_request_are_written_when_they_end() -> None:
    out = io.StringIO()
    tracer = export_traces("console", out).get_tracer("test")
    request = tracer.start_span("request")
    late = tracer.start_span("chat", trace.set_span_in_context(request))
    part = tracer.start_span("decode", trace.set_span_in_context(late))
    request.end()
    part.end()
    assert [line[:40].strip() for line in out.getvalue().splitlines()[1:]] == ["request"]
    late.end()
    assert [line[:40].strip() for line in out.getvalue().splitlines()[3:]] == ["chat", "decode"]


def test_ask_prints_its_trace_on_standard_error(index_folder: Path) -> None:
    shown = CliRunner().invoke(app, ["ask", QUESTION, "--index", str(index_folder), "--trace", "console"])
    assert shown.exit_code == 0, shown.stderr
    lines = shown.stderr.splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("trace "))
    assert [line[:40].strip() for line in lines[first + 1 :][:8]] == ["answer", *STAGES, "chat extractive", "cite"]
    assert "trace " not in shown.stdout


@pytest.mark.parametrize(
    ("environment", "is_traced"),
    [
        ({}, False),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, True),
        ({"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_the_environment_decides_without_the_option(
    environment: dict[str, str], is_traced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    start_traces(None)
    assert (tracing.current_tracer() is not None) is is_traced


def test_the_option_overrides_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    start_traces("none")
    assert tracing.current_tracer() is None


def test_a_provider_that_is_set_already_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    tracing.use_tracer_provider(TracerProvider(shutdown_on_exit=False))
    start_traces(None)
    assert tracing.current_tracer() is not None


def test_an_unknown_exporter_and_an_unsupported_protocol_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="'zipkin'; choose 'otlp' or 'console'"):
        start_traces("zipkin")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(ValueError, match="OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc'; traces are exported as 'http/proto"):
        start_traces("otlp")
    assert tracing.current_tracer() is None
