"""Traces of HTTP requests: parents, stages, durations that add up, cancelled and refused requests, and log lines."""

import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from antiphon.accel import LanguageModel
from antiphon.pipelines import Rag
from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.collections import Collection
from antiphon.pipelines.server.http_server import JsonLogFormatter
from antiphon.pipelines.server.service import Service, make_service
from antiphon.pipelines.server.settings import ServerSettings
from antiphon.retrieval import Retriever
from tests.conftest import TEXTS
from tests.pipelines.recorded_spans import attributes, named, recorded_spans, texts, tree
from tests.pipelines.server.live_server import live_server
from tests.pipelines.server.test_request_limits import becomes, occupied, send

QUESTION = "How many eggs does a queen lay?"
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 24}
CHATS = "POST /v1/chat/completions"
COLLECTION, KEY = "apiary-secrets", "key-of-the-beekeeper"
HEADERS = {"Authorization": f"Bearer {KEY}"}


def service_with(model: LanguageModel, rag: Rag, **settings: Any) -> Service:
    limits = ServerSettings(**{"max_running": 2, "max_waiting": 2, "max_output_tokens": 64, **settings})
    return make_service(model, limits, name="tiny", collections=[Collection(COLLECTION, rag)])


@pytest.fixture(scope="module")
def client(typist: LanguageModel, retriever: Retriever) -> Iterator[TestClient]:
    rag = Rag(retriever, typist, k=2)
    with TestClient(create_app(service_with(typist, rag, api_keys=(KEY,)))) as client:
        yield client


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    with recorded_spans() as exporter:
        yield exporter


def ask(client: TestClient, **body: Any) -> Any:
    request = {"model": f"tiny+{COLLECTION}", **CHAT, **body}
    return client.post("/v1/chat/completions", json=request, headers=HEADERS).raise_for_status()


def test_a_request_has_a_span_for_each_stage_below_that_of_http(
    spans: InMemorySpanExporter, client: TestClient
) -> None:
    body = ask(client).json()
    found = spans.get_finished_spans()
    assert tree(found) == {
        CHATS: ["queue", "retrieve", "prompt", "chat tiny", "cite"],
        "retrieve": ["embed", "search", "rerank"],
        "chat tiny": ["prefill", "decode"],
    }
    http = named(found, CHATS)
    assert http.kind is SpanKind.SERVER
    assert {"http.route": "/v1/chat/completions", "http.response.status_code": 200}.items() <= attributes(http).items()
    assert attributes(named(found, "decode"))["antiphon.forward_passes"] == body["metrics"]["steps"]


def test_the_span_of_the_client_is_the_parent(spans: InMemorySpanExporter, client: TestClient) -> None:
    trace_id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    headers = {**HEADERS, "traceparent": f"00-{trace_id}-{parent}-01"}
    client.post("/v1/chat/completions", json={"model": "tiny", **CHAT}, headers=headers).raise_for_status()
    found = spans.get_finished_spans()
    assert {f"{span.context.trace_id:032x}" for span in found} == {trace_id}
    http = named(found, CHATS)
    assert http.parent is not None
    assert f"{http.parent.span_id:016x}" == parent
    assert tree(found)[CHATS] == ["queue", "prompt", "chat tiny"]


def test_nothing_that_a_client_or_a_document_wrote_is_in_a_trace(
    spans: InMemorySpanExporter, client: TestClient
) -> None:
    answer = ask(client, user="somebody", stop=["@@stop@@"]).json()["choices"][0]["message"]["content"]
    client.get("/passages/nothing-like-this", headers=HEADERS)
    client.get("/v1/models", headers={"Authorization": "Bearer another-key"})
    ask(client, messages=[{"role": "user", "content": QUESTION * 2}])
    written = " ".join([*TEXTS, QUESTION, answer, "somebody @@stop@@ nothing-like-this another-key bees.txt"])
    words = {word.strip("?.,").lower() for word in written.split() if len(word) > 4}
    found = [text.lower() for text in texts(spans.get_finished_spans())]
    assert len(found) > 100
    assert [text for text in found if any(word in text for word in {*words, COLLECTION, KEY})] == []


def test_errors_have_a_type_and_only_those_of_the_server_fail_the_request(
    spans: InMemorySpanExporter, client: TestClient
) -> None:
    request = {"model": f"tiny+{COLLECTION}", **CHAT, "where": {"source": "nowhere"}}
    assert client.post("/v1/chat/completions", json=request, headers=HEADERS).status_code == 400
    found = spans.get_finished_spans()
    assert attributes(named(found, CHATS))["http.response.status_code"] == 400
    assert named(found, CHATS).status.status_code is StatusCode.UNSET
    assert attributes(named(found, "retrieve"))["error.type"] == "ValueError"
    assert named(found, "retrieve").status.description is None


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_is_cancelled_in_the_queue_ends_its_span(
    spans: InMemorySpanExporter, typist: LanguageModel, retriever: Retriever, stream: bool
) -> None:
    service = service_with(typist, Rag(retriever, typist), max_running=1)
    with live_server(create_app(service)) as address, occupied(service, typist):
        connection = send(address, {"model": "tiny", **CHAT, "stream": stream})
        assert becomes(lambda: service.queue.waiting == 1)
        connection.close()
        assert becomes(lambda: any(span.name == CHATS for span in spans.get_finished_spans()))
    found = spans.get_finished_spans()
    assert attributes(named(found, CHATS))["http.response.status_code"] == 499
    assert CHATS not in tree(found)


def test_a_request_that_is_cancelled_while_it_decodes_ends_its_spans(
    spans: InMemorySpanExporter, typist: LanguageModel, retriever: Retriever
) -> None:
    service = service_with(typist, Rag(retriever, typist), max_output_tokens=1500)
    with live_server(create_app(service)) as address:
        connection = send(address, {"model": "tiny", **CHAT, "max_tokens": 1500, "stream": True})
        assert connection.recv(1)
        connection.close()
        assert becomes(lambda: any(span.name == "chat tiny" for span in spans.get_finished_spans()))
    chat = named(spans.get_finished_spans(), "chat tiny")
    assert attributes(chat)["gen_ai.response.finish_reasons"] == ("cancelled",)
    assert attributes(chat)["gen_ai.usage.output_tokens"] < 1500


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """The server's log as lines of JSON."""
    monkeypatch.setattr(caplog.handler, "formatter", JsonLogFormatter())  # the handler is shared by all tests
    caplog.set_level(logging.INFO, "antiphon.server.requests")
    return caplog


def lines_of_requests(log: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, log.text.splitlines()) if "path" in line]


def test_log_lines_have_the_ids_of_the_trace(
    spans: InMemorySpanExporter, client: TestClient, log: pytest.LogCaptureFixture
) -> None:
    ask(client)
    [line] = lines_of_requests(log)
    context = named(spans.get_finished_spans(), CHATS).context
    assert (line["trace_id"], line["span_id"]) == (f"{context.trace_id:032x}", f"{context.span_id:016x}")
    assert attributes(named(spans.get_finished_spans(), CHATS))["antiphon.request_id"] == line["request"]


def test_traces_of_concurrent_requests_do_not_mix(spans: InMemorySpanExporter, client: TestClient) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, [client] * 4))
    by_trace: dict[int, list[ReadableSpan]] = {}
    for span in spans.get_finished_spans():
        by_trace.setdefault(span.context.trace_id, []).append(span)
    assert len(by_trace) == 4
    for found in by_trace.values():
        assert tree(found)[CHATS] == ["queue", "retrieve", "prompt", "chat tiny", "cite"]
