"""A server from its start to its end: what is ready in time is whole, and everybody else is told so."""

from __future__ import annotations

import gc
import json
import signal
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from antiphon.pipelines.server.running import settle
from tests.load.servers import RunningServer
from tests.pipelines.server.processes import connected, heard, tiny_server

MESSAGES: Any = [{"role": "user", "content": "How do bees live?"}]
LONG: Any = {"model": "tiny", "max_tokens": 15_000}
SLOW: dict[str, Any] = {"drain": 0, "parallel": 4, "max_output_tokens": 16_000}
ASKED = {
    "/v1/chat/completions": {**LONG, "messages": MESSAGES},
    "/v1/completions": {**LONG, "prompt": "How do bees live?"},
    "/v1/responses": {"model": "tiny", "max_output_tokens": 15_000, "input": "How do bees live?"},
}


def until_running(server: RunningServer, running: int, waiting: int) -> None:
    """Wait until so many texts are decoded, and so many wait."""
    wanted = {"status": "ok", "running": running, "waiting": waiting}
    until = time.monotonic() + 60
    while httpx.get(f"{server.url}/health").json() != wanted:
        assert time.monotonic() < until
        time.sleep(0.01)


def lines_of(server: RunningServer, path: str, begun: threading.Semaphore) -> list[str]:
    """The lines of a stream up to its end; that it has begun is told."""
    lines: list[str] = []
    with httpx.stream("POST", f"{server.url}{path}", json={**ASKED[path], "stream": True}, timeout=60) as response:
        for line in response.iter_lines():
            if not lines:
                begun.release()
            lines += [line] if line else []
    return lines


def raised(server: RunningServer, begun: threading.Semaphore) -> openai.APIError | None:
    """What openai's client raises in the middle of a stream."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    stream = client.chat.completions.create(**LONG, messages=MESSAGES, stream=True)
    next(stream)
    begun.release()
    try:
        list(stream)
    except openai.APIError as error:
        return error
    return None


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], Any]:
    """What each endpoint told to a stream that had begun, and to a request that waited, when the server was ended.

    One more stream had been begun by openai's client.
    """
    with tiny_server(tmp_path_factory.mktemp("tiny") / "log", **SLOW) as server, ThreadPoolExecutor(7) as pool:
        told: dict[tuple[str, bool], Future[Any]] = {}
        begun = threading.Semaphore(0)
        for path in ASKED:
            told[path, True] = pool.submit(lines_of, server, path, begun)
        told["openai", True] = pool.submit(raised, server, begun)
        assert all(begun.acquire(timeout=60) for _ in told)
        for path, body in ASKED.items():
            told[path, False] = pool.submit(httpx.post, f"{server.url}{path}", json=body, timeout=60)
        until_running(server, 4, 3)
        server.process.send_signal(signal.SIGTERM)
        found = {key: future.result() for key, future in told.items()}
        assert server.process.wait(30) is not None
    return found


@pytest.mark.parametrize("path", ASKED)
def test_a_stream_that_is_not_ready_ends_with_an_error(ended: dict[tuple[str, bool], Any], path: str) -> None:
    events = [json.loads(line[6:]) for line in ended[path, True] if line.startswith("data: {")]
    error = next(event["error"] for event in events if event.get("error"))
    assert (error["type"], error["code"]) == ("server_error", "server_ending")
    assert len(events) > 1, "it had begun"
    if path == "/v1/responses":
        assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
        assert events[-1]["response"]["status"] == "failed"
    else:
        assert events[-1] == {"error": error}


@pytest.mark.parametrize("path", ASKED)
def test_a_request_that_waits_is_refused(ended: dict[tuple[str, bool], Any], path: str) -> None:
    response = ended[path, False]
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "server_ending"


def test_openais_client_raises_what_is_told(ended: dict[tuple[str, bool], Any]) -> None:
    assert "The server is ending" in str(ended["openai", True])


def test_a_server_that_has_started_collects_garbage_and_passes_over_what_stays() -> None:
    gc.disable()
    try:
        settle()
        assert gc.isenabled()
        assert gc.get_freeze_count() > 100_000
    finally:
        gc.enable()
        gc.unfreeze()


def test_what_is_no_text_is_told_as_well_and_what_is_ready_in_time_is_whole(tmp_path: Path) -> None:
    with tiny_server(tmp_path / "log", **SLOW | {"drain": 5}) as server, ThreadPoolExecutor(1) as pool:
        asked = ASKED["/v1/chat/completions"] | {"max_tokens": 100}
        answer = pool.submit(httpx.post, f"{server.url}/v1/chat/completions", json=asked, timeout=60)
        with connected(server.url) as connection:
            head = "POST /documents HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=x\r\n"
            connection.sendall(f"{head}Content-Length: 900\r\n\r\n--x\r\n".encode())
            until_running(server, 1, 0)
            server.process.send_signal(signal.SIGTERM)
            told = heard(connection)
    assert answer.result().json()["usage"]["completion_tokens"] == 100
    assert told.startswith(b"HTTP/1.1 503 ")
    assert json.loads(told.partition(b"\r\n\r\n")[2])["error"]["code"] == "server_ending"
