"""The option `--trace`: a collector over OTLP, the terminal, and OpenTelemetry's variable."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from typer.testing import CliRunner

from antiphon.pipelines.cli import app
from antiphon.pipelines.cli.trace_option import start_traces
from antiphon.pipelines.tracing import Span, use_tracer_provider

QUESTION = "How many eggs does a queen lay?"
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
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(command, env=os.environ | variables | path, check=True, capture_output=True)
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
