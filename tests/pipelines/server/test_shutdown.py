"""Starting and stopping servers: readiness, requests at the shutdown, and restarts."""

import asyncio
import gc
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from fastapi.testclient import TestClient

from antiphon.accel import LanguageModel
from antiphon.pipelines.server import http_server
from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.http_server import DrainingServer, inherited_socket, listen_address, make_server
from antiphon.pipelines.server.service import make_service
from antiphon.pipelines.server.settings import ServerSettings
from tests.load.servers import RunningServer, free_port
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


KEY = {"Authorization": "Bearer KEY"}
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Bees?"}], "max_tokens": 4}


@contextmanager
def listener(address: str) -> Iterator[socket.socket]:
    """Yield a socket that receives what systemd would."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.settimeout(30)
        receiver.bind(address)
        yield receiver


@contextmanager
def running(server: DrainingServer, sockets: list[socket.socket] | None = None) -> Iterator[None]:
    """Run a server in a thread until it has shut down."""
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets)))
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(30)
    assert not thread.is_alive()


def test_a_stopping_server_is_unready_first_and_still_answers_for_the_delay(
    typist: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    port = free_port()
    app = create_app(make_service(typist, ServerSettings(api_keys=("KEY",)), name="tiny"))
    server = make_server(app, "127.0.0.1", port, drain_seconds=5, drain_delay=1)
    with listener(str(tmp_path / "notify")) as manager, httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        with running(server):
            assert manager.recv(100) == b"READY=1"
            assert client.get("/ready").json() == {"status": "ready"}
            assert gc.get_freeze_count() > 100_000, "the garbage collector skips what was loaded"
            server.should_exit = True  # as SIGTERM does
            assert manager.recv(100) == b"STOPPING=1"
            unready = client.get("/ready")
            assert (unready.status_code, unready.json()["error"]["code"]) == (503, "server_shutting_down")
            assert client.get("/health").json()["status"] == "ok"
            assert client.post("/v1/chat/completions", json=BODY, headers=KEY).status_code == 200
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{port}/ready")


def test_readiness_and_liveness_need_no_key(typist: LanguageModel) -> None:
    with TestClient(create_app(make_service(typist, ServerSettings(api_keys=("KEY",)), name="tiny"))) as client:
        assert client.get("/v1/models").status_code == 401
        assert [client.get(path).status_code for path in ("/ready", "/health")] == [200, 200]


@pytest.fixture
def activated(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A listening socket that is passed to this process as systemd does."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        monkeypatch.setattr(http_server, "FIRST_DESCRIPTOR", listening.fileno())
        monkeypatch.setenv("LISTEN_FDS", "1")
        monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
        yield listening


def test_a_client_that_connects_during_a_restart_is_answered_by_the_new_process(
    typist: LanguageModel, activated: socket.socket
) -> None:
    address = listen_address("0.0.0.0", 1)
    assert address == activated.getsockname(), "so that the rules for the address are those of the socket"
    answers = []
    for _ in range(2):
        app = create_app(make_service(typist, ServerSettings(), name="tiny"))
        inherited = inherited_socket()
        assert inherited is not None
        with socket.create_connection(address, timeout=30) as client:  # before the server listens
            client.sendall(b"GET /ready HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            with running(make_server(app, *address, drain_seconds=5), [inherited]):
                answers.append(client.recv(100).partition(b"\r\n")[0])
    assert answers == [b"HTTP/1.1 200 OK"] * 2
