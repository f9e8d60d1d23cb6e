"""Who may ask, how much, from where; and that nobody hears of another."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from antiphon.accel import LanguageModel
from antiphon.pipelines.cli import app as cli
from antiphon.pipelines.server.jobs import Begun, Finished, Grown, Scheduler, TextJob
from antiphon.pipelines.server.running import check_free, check_place
from antiphon.pipelines.server.settings import ServerSettings
from antiphon.pipelines.server.tenants import check_key
from tests.pipelines.server.conftest import Serve
from tests.pipelines.server.test_chat_completions import MESSAGES, chat

ASKED = {"model": "tiny", "messages": MESSAGES, "max_tokens": 4}
GUARDED = (
    ("GET", "/v1/models"),
    ("GET", "/metrics"),
    ("GET", "/documents"),
    ("GET", "/passages/x"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/rerank"),
    ("POST", "/documents"),
    ("DELETE", "/documents?id=x"),
)


class Nobody:
    """Counts nothing."""

    def ended(self, event: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def locked(serve: Serve) -> Any:
    with serve(keys=("one", "two"), max_body_bytes=5000, max_upload_bytes=8000) as client:
        yield client


@pytest.mark.parametrize(("method", "path"), GUARDED)
@pytest.mark.parametrize("header", [None, "Bearer three", "one", "Bearer ", "Basic one"])
def test_without_the_key_nothing_is_told(locked: TestClient, method: str, path: str, header: str | None) -> None:
    response = locked.request(method, path, headers={} if header is None else {"Authorization": header})
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"


def test_either_key_opens_and_the_page_needs_none(locked: TestClient) -> None:
    for key in ("one", "two"):
        headers = {"Authorization": f"Bearer {key}"}
        assert locked.post("/v1/chat/completions", json=ASKED, headers=headers).status_code == 200
    assert locked.get("/").status_code == locked.get("/health").status_code == 200


def test_keys_of_any_bytes_are_compared() -> None:
    assert check_key("Bearer \xfc", ("\xfc",)) == check_key("bearer  \xfc ", ("x", "\xfc"))


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_body_that_is_too_large_is_refused(locked: TestClient, is_streamed: bool) -> None:
    def body() -> Any:
        yield from (b" " * 1000 for _ in range(10))

    headers = {"Authorization": "Bearer one", "Content-Type": "application/json"}
    content = body() if is_streamed else b" " * 10_000
    response = locked.post("/v1/chat/completions", content=content, headers=headers)
    assert response.status_code == 413
    response = locked.post("/documents", files={"file": ("a.txt", b"a" * 9000)}, headers=headers | {"Content-Type": ""})
    assert response.status_code in (400, 413)


NO_JSON = "The body is no JSON: Expecting property name enclosed in double quotes."


@pytest.mark.parametrize("body", [b"{", b"[]", b"null", b'{"model": 1}', b"\xff\xfe"])
def test_bad_json_is_an_error_in_openais_form(client: TestClient, body: bytes) -> None:
    response = client.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert (error["param"], error["message"]) == (None, NO_JSON) or body != b"{"
    assert client.get("/nowhere").json()["error"]["type"] == "not_found_error"
    assert client.get("/v1/completions").status_code == 405


def test_a_body_that_is_no_object_is_told_how_to_be_one(client: TestClient) -> None:
    for kind in ("application/x-www-form-urlencoded", "text/plain"):
        asked = client.post("/v1/chat/completions", content=json.dumps(ASKED), headers={"Content-Type": kind})
        assert asked.status_code == 400
        assert asked.json()["error"]["message"].endswith(f"Content-Type: application/json; that header was: {kind}.")
    assert "JSON object" in client.post("/v1/responses").json()["error"]["message"]
    assert "/v1" in client.post("/chat/completions", json=ASKED).json()["error"]["message"]


def test_every_answer_has_its_policy_and_a_number(client: TestClient) -> None:
    for path in ("/", "/docs", "/static/app.js", "/v1/models", "/nowhere"):
        headers = client.get(path, headers={"X-Request-ID": "mine-1"}).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-request-id"] == "mine-1"
        assert "access-control-allow-origin" not in headers
    assert client.get("/", headers={"X-Request-ID": "a b\tc"}).headers["x-request-id"] != "a b\tc"


def test_pages_of_other_places_and_other_names_may_not_ask(serve: Serve) -> None:
    with serve(origins=("https://friend.example",), hosts=("testserver",)) as client:
        strange = {"Origin": "https://strange.example"}
        assert client.post("/v1/chat/completions", json=ASKED, headers=strange).status_code == 403
        assert client.post("/documents", files={"file": ("a.txt", b"a")}, headers=strange).status_code == 403
        friend = client.get("/v1/models", headers={"Origin": "https://friend.example"})
        assert friend.headers["access-control-allow-origin"] == "https://friend.example"
        assert client.get("/v1/models", headers={"Origin": "http://testserver"}).status_code == 200
        assert client.get("/v1/models", headers={"Host": "rebound.example"}).status_code == 403


def test_a_server_that_only_reads_takes_no_documents(serve: Serve) -> None:
    with serve(read_only=True) as client:
        assert client.get("/documents").json()["read_only"] is True
        assert client.post("/documents", files={"file": ("a.txt", b"a")}).status_code == 403
        assert client.delete("/documents", params={"id": "uploaded/a.txt"}).status_code == 403


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.org"])
def test_other_machines_need_a_key_unless_told_so(host: str) -> None:
    with pytest.raises(ValueError, match="no key is set"):
        check_place(host, ServerSettings(), lets_anybody=False)
    check_place(host, ServerSettings(keys=("k",)), lets_anybody=False)
    check_place(host, ServerSettings(), lets_anybody=True)
    for own in ("127.0.0.1", "127.8.9.1", "localhost", "::1"):
        check_place(own, ServerSettings(), lets_anybody=False)


def test_an_address_that_is_taken_is_refused_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        told = CliRunner().invoke(cli, ["serve", "--model", "no/such/model", "--port", str(port)])
        assert told.exit_code == 2
        assert f"cannot listen at 127.0.0.1, port {port}" in " ".join(told.output.split())
    check_free("127.0.0.1", port)
    check_free("localhost", 0)


def test_no_text_and_no_key_is_in_the_log(locked: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="antiphon"):
        secret = {"model": "tiny", "messages": [{"role": "user", "content": "SECRET-WORD"}], "max_tokens": 2}
        locked.post("/v1/chat/completions?q=SECRET-WORD", json=secret, headers={"Authorization": "Bearer one"})
        locked.post("/v1/chat/completions", json=secret, headers={"Authorization": "Bearer WRONG-KEY"})
        locked.get("/passages/SECRET-WORD", headers={"Authorization": "Bearer one"})
    lines = [record.getMessage() for record in caplog.records if record.name == "antiphon.server.requests"]
    assert [json.loads(line)["status"] for line in lines] == [200, 401, 404]
    assert json.loads(lines[0])["path"] == "/v1/chat/completions"
    assert not any("SECRET" in line or "WRONG" in line for line in lines)


def test_forty_tenants_at_once_hear_nothing_of_each_other(serve: Serve, typist: LanguageModel) -> None:
    own = typist.generate(MESSAGES, max_new_tokens=24).text

    def ask(client: TestClient, number: int) -> str:
        secret = f"{own[: number % 20]} the secret of tenant {number:03d}"
        told = chat(client, user=f"tenant {number}", max_tokens=24, references=[{"text": secret, "id": f"id-{number}"}])
        assert told["choices"][0]["message"]["content"] == own
        assert told["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, "nobody has asked before as this tenant"
        return json.dumps(told)

    with serve(queue=64, tenants=40) as client, ThreadPoolExecutor(40) as pool:
        for number, text in enumerate(pool.map(partial(ask, client), range(40))):
            others = [f"{each:03d}" for each in range(40) if each != number]
            assert not any(f"tenant {other}" in text or f'id-{int(other)}"' in text for other in others)
        again = chat(client, user="tenant 7", max_tokens=24)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 10, "a tenant's own prompt is not read again"


class Gate:
    """A stream of pieces that comes on when it is let."""

    prompt_tokens = 1

    def __init__(self, language_model: LanguageModel) -> None:
        self.stream = language_model.stream(MESSAGES, max_new_tokens=64)
        self.let = threading.Semaphore(0)
        self.steps = 0

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *error: object) -> None:
        self.stream.close()

    def __iter__(self) -> Gate:
        return self

    def __next__(self) -> str:
        assert self.let.acquire(timeout=10)
        self.steps += 1
        return next(self.stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


async def drained(events: AsyncIterator[Any]) -> list[Any]:
    return [event async for event in events]


async def test_whoever_goes_frees_the_model_within_a_step(typist: LanguageModel) -> None:
    gate = Gate(typist)
    scheduler = Scheduler(parallel=1, waiting=2, watcher=Nobody())
    job = TextJob(lambda: Begun(gate), "someone")  # type: ignore[arg-type]
    scheduler.submit([job])
    gate.let.release()
    events = job.events()
    assert isinstance(await anext(events), Begun)
    assert isinstance(await anext(events), Grown)
    await events.aclose()  # type: ignore[attr-defined]
    gate.let.release()
    for _ in range(1000):
        if not scheduler.running:
            break
        await asyncio.sleep(0.005)
    assert scheduler.running == 0
    assert gate.steps <= 2, "the step under way, and no further one"
    scheduler.close()


async def test_tenants_take_turns_and_a_full_queue_says_when_to_come_again(typist: LanguageModel) -> None:
    from antiphon.pipelines.server.errors import ApiError

    order: list[str] = []
    hold = threading.Event()

    def begin(name: str) -> Begun:
        hold.wait(10)
        order.append(name)
        return Begun(typist.stream(MESSAGES, max_new_tokens=1))

    scheduler = Scheduler(parallel=1, waiting=4, watcher=Nobody())
    jobs = [TextJob(partial(begin, tenant), tenant) for tenant in ("a", "a", "a", "a", "b")]
    for job in jobs:
        scheduler.submit([job])
    with pytest.raises(ApiError) as refused:
        scheduler.submit([TextJob(partial(begin, "c"), "c")])
    assert refused.value.status == 429
    assert int((refused.value.headers or {})["Retry-After"]) >= 1
    hold.set()
    told = await asyncio.gather(*(drained(job.events()) for job in jobs))
    assert all(isinstance(events[-1], Finished) for events in told)
    assert order.index("b") <= 2, "whoever asks once waits for one of those who ask often"
    scheduler.close()
