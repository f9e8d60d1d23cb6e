"""Limits of request bodies and heads: clients receive an error, and slow ones are disconnected."""

import json
import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from antiphon.pipelines.server.http_server import HEADER_TIMEOUT
from tests.load.servers import RunningServer
from tests.pipelines.server.server_process import connect, read_to_end, tiny_server
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
