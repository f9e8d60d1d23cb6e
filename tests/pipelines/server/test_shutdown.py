"""Shutdown of a server: requests that finish in time are answered, all others receive an error."""

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

from tests.load.servers import RunningServer
from tests.pipelines.server.server_process import connect, read_to_end, tiny_server

pytestmark = pytest.mark.slow

MESSAGES: Any = [{"role": "user", "content": "How do bees live?"}]
LONG: Any = {"model": "tiny", "max_tokens": 15_000}
SLOW: dict[str, Any] = {"drain": 0, "max_running": 4, "max_output_tokens": 16_000}
REQUESTS = {
    "/v1/chat/completions": {**LONG, "messages": MESSAGES},
    "/v1/completions": {**LONG, "prompt": "How do bees live?"},
    "/v1/responses": {"model": "tiny", "max_output_tokens": 15_000, "input": "How do bees live?"},
}


def until_running(server: RunningServer, running: int, waiting: int) -> None:
    """Wait until the server reports these numbers of running and waiting generations."""
    expected = {"status": "ok", "running": running, "waiting": waiting}
    until = time.monotonic() + 60
    while httpx.get(f"{server.url}/health").json() != expected:
        assert time.monotonic() < until
        time.sleep(0.01)


def stream_lines(server: RunningServer, path: str, started: threading.Semaphore) -> list[str]:
    """Return the lines of a stream up to its end; release ``started`` after the first."""
    lines: list[str] = []
    with httpx.stream("POST", f"{server.url}{path}", json={**REQUESTS[path], "stream": True}, timeout=60) as response:
        for line in response.iter_lines():
            if not lines:
                started.release()
            lines += [line] if line else []
    return lines


def openai_error(server: RunningServer, started: threading.Semaphore) -> openai.APIError | None:
    """Return the error that openai-python raises in the middle of a stream."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    stream = client.chat.completions.create(**LONG, messages=MESSAGES, stream=True)
    next(stream)
    started.release()
    try:
        list(stream)
    except openai.APIError as error:
        return error
    return None


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], Any]:
    """Terminate a server; return what each endpoint sent to a started stream and to a waiting request.

    The keys are path and whether it is a stream. One more stream belongs to openai-python.
    """
    with tiny_server(tmp_path_factory.mktemp("tiny") / "log", **SLOW) as server, ThreadPoolExecutor(7) as pool:
        futures: dict[tuple[str, bool], Future[Any]] = {}
        started = threading.Semaphore(0)
        for path in REQUESTS:
            futures[path, True] = pool.submit(stream_lines, server, path, started)
        futures["openai", True] = pool.submit(openai_error, server, started)
        assert all(started.acquire(timeout=60) for _ in futures)
        for path, body in REQUESTS.items():
            futures[path, False] = pool.submit(httpx.post, f"{server.url}{path}", json=body, timeout=60)
        until_running(server, 4, 3)
        server.process.send_signal(signal.SIGTERM)
        found = {key: future.result() for key, future in futures.items()}
        assert server.process.wait(30) is not None
    return found


@pytest.mark.parametrize("path", REQUESTS)
def test_an_unfinished_stream_ends_with_an_error(results: dict[tuple[str, bool], Any], path: str) -> None:
    events = [json.loads(line[6:]) for line in results[path, True] if line.startswith("data: {")]
    error = next(event["error"] for event in events if event.get("error"))
    assert (error["type"], error["code"]) == ("server_error", "server_shutting_down")
    assert len(events) > 1, "it had started"
    if path == "/v1/responses":
        assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
        assert events[-1]["response"]["status"] == "failed"
    else:
        assert events[-1] == {"error": error}


@pytest.mark.parametrize("path", REQUESTS)
def test_a_waiting_request_is_refused(results: dict[tuple[str, bool], Any], path: str) -> None:
    response = results[path, False]
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "server_shutting_down"


def test_openai_python_raises_the_error(results: dict[tuple[str, bool], Any]) -> None:
    assert "The server is shutting down" in str(results["openai", True])


@pytest.mark.exhaustive
def test_uploads_receive_the_error_and_requests_that_finish_in_time_are_answered(tmp_path: Path) -> None:
    with tiny_server(tmp_path / "log", **SLOW | {"drain": 5}) as server, ThreadPoolExecutor(1) as pool:
        body = REQUESTS["/v1/chat/completions"] | {"max_tokens": 100}
        answer = pool.submit(httpx.post, f"{server.url}/v1/chat/completions", json=body, timeout=60)
        with connect(server.url) as connection:
            head = "POST /documents HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=x\r\n"
            connection.sendall(f"{head}Content-Length: 900\r\n\r\n--x\r\n".encode())
            until_running(server, 1, 0)
            server.process.send_signal(signal.SIGTERM)
            response = read_to_end(connection)
    assert answer.result().json()["usage"]["completion_tokens"] == 100
    assert response.startswith(b"HTTP/1.1 503 ")
    assert json.loads(response.partition(b"\r\n\r\n")[2])["error"]["code"] == "server_shutting_down"
