"""Clients that send too much or too slowly are refused, and those that disconnect leave the queue."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from antiphon.accel import LanguageModel
from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.http_server import HEADER_TIMEOUT
from antiphon.pipelines.server.request_queue import GenerationJob, RequestQueue, Started
from antiphon.pipelines.server.service import Service
from tests.load.servers import RunningServer
from tests.pipelines.server.conftest import tiny_service
from tests.pipelines.server.live_server import live_server
from tests.pipelines.server.server_process import connect, read_to_end, tiny_server
from tests.pipelines.server.test_security import GatedStream, started
from tests.table_part import part

pytestmark = pytest.mark.slow

CHAT = "/v1/chat/completions"
MAX_BYTES = 100_000
LARGE = 40_000_000
"""Bytes; more than the socket buffers of both ends hold."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("tiny") / "log"
    with tiny_server(log, body_timeout=2, max_body_bytes=MAX_BYTES, max_upload_bytes=MAX_BYTES) as server:
        yield server


def is_disconnected(connection: socket.socket, *, seconds: float, every: float) -> bool:
    """Send one byte ``every`` few seconds; return whether the server disconnects within ``seconds``."""
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            connection.sendall(b"x")
            time.sleep(every)
    except OSError:
        return True
    return False


def is_disconnected_in_head(server: RunningServer) -> bool:
    """Return whether the server disconnects a client that sends the head of its second request slowly."""
    with connect(server.url) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b"200 OK" in connection.recv(2**16)
        return is_disconnected(connection, seconds=3 * HEADER_TIMEOUT, every=1)


@pytest.mark.parametrize("connection", part(("keep-alive", "close"), ("keep-alive",)))
@pytest.mark.parametrize(("path", "code"), {CHAT: "too_large", "/documents": "400", "/v1/models": "405"}.items())
@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_client_that_sends_too_much_receives_the_error(
    server: RunningServer, path: str, code: str, connection: str, is_chunked: bool
) -> None:
    content = iter([b" " * 100_000] * (LARGE // 100_000)) if is_chunked else b" " * LARGE
    headers = {"Content-Type": "application/json", "Connection": connection}
    response = httpx.post(f"{server.url}{path}", content=content, headers=headers, timeout=60)
    assert response.json()["error"]["code"] == (code if is_chunked else "too_large")


def test_a_client_that_expects_100_continue_is_refused_before_it_sends(server: RunningServer) -> None:
    with connect(server.url) as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: 100-continue\r\nContent-Length: {LARGE}\r\n\r\n"
        connection.sendall(head.encode())
        assert read_to_end(connection).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    ("path", "kind", "content"),
    [(CHAT, "application/json", b" " * 9), ("/documents", "multipart/form-data; boundary=x", b"--x\r\nConte")],
)
def test_a_slow_body_is_refused(server: RunningServer, path: str, kind: str, content: bytes) -> None:
    with connect(server.url) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: 900\r\n\r\n"
        connection.sendall(head.encode())
        for index in range(3):
            connection.sendall(content[index : index + 1])
            time.sleep(0.1)
        response = read_to_end(connection)
    assert response.startswith(b"HTTP/1.1 408 ")
    assert json.loads(response.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_slow"


def test_a_client_that_sends_slowly_after_a_refusal_is_disconnected(server: RunningServer) -> None:
    with connect(server.url) as connection:
        connection.sendall(b"POST /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 90000\r\n\r\n")
        assert is_disconnected(connection, seconds=20, every=0.2)


def test_the_connection_stays_usable_after_a_refused_body(server: RunningServer) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for _ in range(2):
            assert client.post(CHAT, content=b" " * LARGE).status_code == 413
            assert client.get("/health").status_code == 200


@pytest.mark.exhaustive
@pytest.mark.timeout(4 * HEADER_TIMEOUT + 60)
def test_a_slow_request_head_is_disconnected(server: RunningServer) -> None:
    assert is_disconnected_in_head(server)


REQUEST = {"model": "tiny", "messages": [{"role": "user", "content": "How do bees live?"}], "max_tokens": 64}


@pytest.fixture
def service(typist: LanguageModel, index_folder: Path) -> Service:
    return tiny_service(typist, index_folder, max_running=1, max_waiting=2)


@contextmanager
def occupied(service: Service, model: LanguageModel) -> Iterator[None]:
    """Occupy the only decoding thread until the ``with`` block exits."""
    release = threading.Event()

    def start() -> Started:
        release.wait(30)
        return started(model.stream("x", max_new_tokens=1))

    loop = asyncio.new_event_loop()
    service.queue.submit([GenerationJob(start, "someone", loop)])
    try:
        yield
    finally:
        release.set()
        assert becomes(lambda: service.queue.running == 0)
        loop.close()


def send(address: str, body: dict[str, Any]) -> socket.socket:
    """Send a chat request and return its connection."""
    url = urlsplit(address)
    connection = socket.create_connection((url.hostname, url.port))
    content = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return connection


def becomes(condition: Callable[[], bool], seconds: float = 10) -> bool:
    """Return whether the condition holds within ``seconds``."""
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()


@pytest.mark.parametrize("stream", [False, True])
def test_a_waiting_client_that_disconnects_leaves_the_queue(
    service: Service, typist: LanguageModel, stream: bool
) -> None:
    queue = service.queue
    with live_server(create_app(service)) as address, occupied(service, typist):
        connections = [send(address, {**REQUEST, "stream": stream}) for _ in range(2)]
        assert becomes(lambda: queue.waiting == 2)
        for connection in connections:
            connection.close()
        assert becomes(lambda: queue.waiting == 0)
        [another] = [send(address, {**REQUEST, "stream": stream})]
        assert becomes(lambda: queue.waiting == 1), "the queue has room again"
        another.close()


def test_nothing_is_decoded_for_a_client_that_disconnected_before_the_start(typist: LanguageModel) -> None:
    gates: list[GatedStream] = []
    is_starting, is_cancelled = threading.Event(), threading.Event()

    def start() -> Started:
        is_starting.set()
        is_cancelled.wait(10)
        gates.append(GatedStream(typist))
        gates[-1].steps_allowed.release()
        return started(gates[-1])

    queue = RequestQueue(max_running=1, max_waiting=1)
    loop = asyncio.new_event_loop()
    job = GenerationJob(start, "someone", loop)
    queue.submit([job])
    assert is_starting.wait(10)
    job.cancel()
    is_cancelled.set()
    assert becomes(lambda: queue.running == 0)
    assert [gate.steps for gate in gates] == [0]
    queue.close()
    loop.close()
