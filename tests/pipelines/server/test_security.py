"""Security of the server: API keys, limits, hosts and origins, logging, and fair queueing."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, MutableMapping
from functools import partial
from typing import Any

import pytest
from fastapi.testclient import TestClient

from antiphon.accel import LanguageModel
from antiphon.accel.text.messages import CountedPrompt
from antiphon.pipelines.prompt import Prompt
from antiphon.pipelines.request_plan import RequestPlan
from antiphon.pipelines.server.access_control import AccessKeys, check_listen_address
from antiphon.pipelines.server.errors import NO_DATABASE, to_api_error
from antiphon.pipelines.server.request_queue import Delta, Finished, GenerationJob, RequestQueue, Started
from antiphon.pipelines.server.settings import ServerSettings
from antiphon.pipelines.tracing import Span
from antiphon.retrieval.errors import DatabaseUnavailable
from tests.pipelines.server.conftest import Serve
from tests.pipelines.server.test_chat_completions import MESSAGES

REQUEST = {"model": "tiny", "messages": MESSAGES, "max_tokens": 4}
GUARDED_ENDPOINTS = (
    ("GET", "/v1/models"),
    ("GET", "/metrics"),
    ("GET", "/documents"),
    ("GET", "/passages/x"),
    ("GET", "/passages/x/context"),
    ("GET", "/passages/x/pages"),
    ("GET", "/passages/x/page.png?page=1"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/rerank"),
    ("POST", "/documents"),
    ("DELETE", "/documents?id=x"),
)


@pytest.fixture(scope="module")
def locked(serve: Serve) -> Any:
    with serve(api_keys=("one", "two"), max_body_bytes=5000, max_upload_bytes=8000) as client:
        yield client


@pytest.mark.parametrize(("method", "path"), GUARDED_ENDPOINTS)
@pytest.mark.parametrize("header", [None, "Bearer three", "one", "Bearer ", "Basic one"])
def test_without_a_valid_key_every_guarded_endpoint_answers_401(
    locked: TestClient, method: str, path: str, header: str | None
) -> None:
    response = locked.request(method, path, headers={} if header is None else {"Authorization": header})
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/documents"])
async def test_a_client_without_a_valid_key_is_refused_before_its_body_is_received(
    locked: TestClient, path: str
) -> None:
    events: list[str] = []

    async def receive() -> dict[str, Any]:
        events.append("receive")
        return {"type": "http.request", "body": b"{", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        events.append(str(message["type"]))

    headers = [(b"host", b"testserver"), (b"content-length", b"1"), (b"authorization", b"Bearer three")]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    await locked.app(scope, receive, send)
    assert events[0] == "http.response.start"


def test_the_message_of_an_internal_error_stays_on_the_server() -> None:
    found = to_api_error(RuntimeError("/home/operator/documents"))
    assert found.status == 500
    assert "operator" not in str(found)
    assert str(to_api_error(ValueError("k is 0; give 1 or more."))) == "k is 0; give 1 or more."
    away = to_api_error(DatabaseUnavailable("//operator@host does not answer"))
    assert (away.status, str(away)) == (503, NO_DATABASE)


def test_either_key_is_accepted_and_the_page_needs_none(locked: TestClient) -> None:
    for key in ("one", "two"):
        headers = {"Authorization": f"Bearer {key}"}
        assert locked.post("/v1/chat/completions", json=REQUEST, headers=headers).status_code == 200
    assert locked.get("/").status_code == locked.get("/health").status_code == 200


def test_keys_of_any_bytes_are_compared() -> None:
    keys = AccessKeys(("x", "\xfc"))
    assert AccessKeys(("\xfc",)).access("Bearer \xfc").key == keys.access("bearer  \xfc ").key


def test_a_body_in_chunks_that_is_too_large_is_refused(locked: TestClient) -> None:
    headers = {"Authorization": "Bearer one", "Content-Type": "application/json"}
    response = locked.post("/v1/chat/completions", content=iter([b" " * 1000] * 10), headers=headers)
    assert response.status_code == 413


INVALID_JSON = "The body is not valid JSON: Expecting property name enclosed in double quotes."


@pytest.mark.parametrize("body", [b"{", b"[]", b"null", b'{"model": 1}', b"\xff\xfe"])
def test_invalid_json_is_an_error_in_openais_format(client: TestClient, body: bytes) -> None:
    response = client.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert (error["param"], error["message"]) == (None, INVALID_JSON) or body != b"{"
    assert client.get("/nowhere").json()["error"]["type"] == "not_found_error"
    assert client.get("/v1/completions").status_code == 405


def test_every_response_has_security_headers_and_a_request_id(client: TestClient) -> None:
    for path in ("/", "/docs", "/static/app.js", "/v1/models", "/nowhere"):
        headers = client.get(path, headers={"X-Request-ID": "mine-1"}).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-request-id"] == "mine-1"
        assert "access-control-allow-origin" not in headers
    assert client.get("/", headers={"X-Request-ID": "a b\tc"}).headers["x-request-id"] != "a b\tc"


def test_other_origins_and_other_host_names_are_refused(serve: Serve) -> None:
    with serve(allowed_origins=("https://friend.example",), allowed_hosts=("testserver",)) as client:
        strange = {"Origin": "https://strange.example"}
        assert client.post("/v1/chat/completions", json=REQUEST, headers=strange).status_code == 403
        assert client.post("/documents", files={"file": ("a.txt", b"a")}, headers=strange).status_code == 403
        for site, status in {"same-origin": 200, "same-site": 403, "cross-site": 403}.items():  # behind a proxy
            assert client.get("/v1/models", headers=strange | {"Sec-Fetch-Site": site}).status_code == status
        friend = client.get("/v1/models", headers={"Origin": "https://friend.example"})
        assert friend.headers["access-control-allow-origin"] == "https://friend.example"
        assert client.get("/v1/models", headers={"Origin": "http://testserver"}).status_code == 200
        assert client.get("/v1/models", headers={"Host": "rebound.example"}).status_code == 403
        for malformed in ({"Host": "["}, {"Origin": "http://["}, {"Host": "testserver[", "Origin": "null"}):
            assert client.get("/v1/models", headers=malformed).status_code == 403


def test_a_read_only_server_refuses_uploads_and_deletions(serve: Serve) -> None:
    with serve(read_only=True) as client:
        assert client.get("/documents").json()["read_only"] is True
        assert client.post("/documents", files={"file": ("a.txt", b"a")}).status_code == 403
        assert client.delete("/documents", params={"id": "uploaded/a.txt"}).status_code == 403


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.org"])
def test_listening_for_other_machines_needs_a_key_or_an_explicit_option(host: str) -> None:
    with pytest.raises(ValueError, match="no API key is set"):
        check_listen_address(host, ServerSettings(), allow_without_key=False)
    check_listen_address(host, ServerSettings(api_keys=("k",)), allow_without_key=False)
    check_listen_address(host, ServerSettings(), allow_without_key=True)
    for own in ("127.0.0.1", "127.8.9.1", "localhost", "::1"):
        check_listen_address(own, ServerSettings(), allow_without_key=False)


def test_the_log_contains_no_texts_and_no_keys(locked: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="antiphon"):
        secret = {"model": "tiny", "messages": [{"role": "user", "content": "SECRET-WORD"}], "max_tokens": 2}
        locked.post("/v1/chat/completions?q=SECRET-WORD", json=secret, headers={"Authorization": "Bearer one"})
        locked.post("/v1/chat/completions", json=secret, headers={"Authorization": "Bearer WRONG-KEY"})
        locked.get("/passages/SECRET-WORD", headers={"Authorization": "Bearer one"})
    lines: list[Any] = [record.msg for record in caplog.records if record.name == "antiphon.server.requests"]
    assert [line["status"] for line in lines] == [200, 401, 404]
    assert lines[0]["path"] == "/v1/chat/completions"
    assert not any("SECRET" in str(line) or "WRONG" in str(line) for line in lines)


class GatedStream:
    """A stream that generates each piece only when the test allows it."""

    prompt_tokens = 1

    def __init__(self, language_model: LanguageModel) -> None:
        self.stream = language_model.stream(MESSAGES, max_new_tokens=64)
        self.steps_allowed = threading.Semaphore(0)
        self.steps = 0

    def __enter__(self) -> GatedStream:
        return self

    def __exit__(self, *error: object) -> None:
        self.stream.close()

    def __iter__(self) -> GatedStream:
        return self

    def __next__(self) -> str:
        assert self.steps_allowed.acquire(timeout=10)
        self.steps += 1
        return next(self.stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def started(stream: Any) -> Started:
    """Return the first event of a generation that cites no passages."""
    plan = RequestPlan(passages=(), prompt=Prompt(""), tokenized=CountedPrompt("", 0), references=())
    return Started(stream, plan, on_end=lambda: None, span=Span("chat"))


async def read_events(events: AsyncIterator[Any]) -> list[Any]:
    return [event async for event in events]


async def test_a_disconnecting_client_frees_the_model_within_one_step(typist: LanguageModel) -> None:
    gate = GatedStream(typist)
    queue = RequestQueue(max_running=1, max_waiting=2)
    job = GenerationJob(lambda: started(gate), "someone")
    queue.submit([job])
    gate.steps_allowed.release()
    events = job.events()
    assert isinstance(await anext(events), Started)
    assert isinstance(await anext(events), Delta)
    await events.aclose()  # type: ignore[attr-defined]
    gate.steps_allowed.release()
    for _ in range(1000):
        if not queue.running:
            break
        await asyncio.sleep(0.005)
    assert queue.running == 0
    assert gate.steps <= 2, "only the current step is finished"
    queue.close()


async def test_tenants_take_turns_and_a_full_queue_says_when_to_retry(typist: LanguageModel) -> None:
    from antiphon.pipelines.server.errors import ApiError

    order: list[str] = []
    hold = threading.Event()

    def start(name: str) -> Started:
        hold.wait(10)
        order.append(name)
        return started(typist.stream(MESSAGES, max_new_tokens=1))

    queue = RequestQueue(max_running=1, max_waiting=4)
    jobs = [GenerationJob(partial(start, tenant), tenant) for tenant in ("a", "a", "a", "a", "b")]
    for job in jobs:
        queue.submit([job])
    with pytest.raises(ApiError) as refused:
        queue.submit([GenerationJob(partial(start, "c"), "c")])
    assert refused.value.status == 429
    assert int((refused.value.headers or {})["Retry-After"]) >= 1
    hold.set()
    results = await asyncio.gather(*(read_events(job.events()) for job in jobs))
    assert all(isinstance(events[-1], Finished) for events in results)
    assert order.index("b") <= 2, "a tenant with one job waits for at most one job of a tenant with many"
    queue.close()
