"""Bodies that are too large, too slow, or sent where nobody wants them: the client hears of it, and nobody waits."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPConnection
from urllib.parse import urlsplit

import httpx
import pytest

from antiphon.pipelines.server.running import SILENCE
from tests.load.servers import RunningServer
from tests.pipelines.server.processes import connected, heard, tiny_server

CHAT = "/v1/chat/completions"
MOST = 100_000
LARGE = 40_000_000
"""More than the buffers of both ends hold."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("tiny") / "log"
    with tiny_server(log, body_seconds=2, max_body_bytes=MOST, max_upload_bytes=MOST) as server:
        yield server


def is_cut(connection: socket.socket, *, seconds: float, every: float) -> bool:
    """Whether a client that sends a byte every now and then is cut within so many seconds."""
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            connection.sendall(b"x")
            time.sleep(every)
    except OSError:
        return True
    return False


def is_cut_in_a_head(server: RunningServer) -> bool:
    """Whether a client is cut whose second request trickles in."""
    with connected(server.url) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b"200 OK" in connection.recv(2**16)
        return is_cut(connection, seconds=3 * SILENCE, every=1)


@pytest.fixture(scope="module", autouse=True)
def trickling(server: RunningServer) -> Iterator[Future[bool]]:
    """Begun before all other tests, which it takes longer than."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(is_cut_in_a_head, server)


@pytest.mark.parametrize("how", ["keep-alive", "close"])
@pytest.mark.parametrize(("path", "code"), {CHAT: "too_large", "/documents": "400", "/v1/models": "405"}.items())
@pytest.mark.parametrize("is_chunked", [False, True])
def test_whoever_sends_too_much_is_told(
    server: RunningServer, path: str, code: str, how: str, is_chunked: bool
) -> None:
    content = iter([b" " * 100_000] * (LARGE // 100_000)) if is_chunked else b" " * LARGE
    headers = {"Content-Type": "application/json", "Connection": how}
    response = httpx.post(f"{server.url}{path}", content=content, headers=headers, timeout=60)
    assert response.json()["error"]["code"] == (code if is_chunked else "too_large")


def test_a_client_that_writes_all_before_it_reads_is_told(server: RunningServer) -> None:
    connection = HTTPConnection(urlsplit(server.url).netloc, timeout=60)
    connection.request("POST", CHAT, b" " * LARGE, {"Content-Type": "application/json", "Connection": "close"})
    response = connection.getresponse()
    assert response.status == 413
    assert json.loads(response.read())["error"]["code"] == "too_large"
    connection.close()


def test_a_client_that_asks_first_need_not_send(server: RunningServer) -> None:
    with connected(server.url) as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: 100-continue\r\nContent-Length: {LARGE}\r\n\r\n"
        connection.sendall(head.encode())
        assert heard(connection).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    ("path", "kind", "content"),
    [(CHAT, "application/json", b" " * 9), ("/documents", "multipart/form-data; boundary=x", b"--x\r\nConte")],
)
def test_a_body_that_trickles_in_is_ended(server: RunningServer, path: str, kind: str, content: bytes) -> None:
    with connected(server.url) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: 900\r\n\r\n"
        connection.sendall(head.encode())
        for place in range(3):
            connection.sendall(content[place : place + 1])
            time.sleep(0.1)
        told = heard(connection)
    assert told.startswith(b"HTTP/1.1 408 ")
    assert json.loads(told.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_slow"


def test_who_trickles_on_after_a_refusal_is_cut(server: RunningServer) -> None:
    with connected(server.url) as connection:
        connection.sendall(b"POST /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 90000\r\n\r\n")
        assert is_cut(connection, seconds=20, every=0.2)


def test_after_a_refused_body_the_connection_goes_on(server: RunningServer) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for _ in range(2):
            assert client.post(CHAT, content=b" " * LARGE).status_code == 413
            assert client.get("/health").status_code == 200


def test_whatever_can_be_read_has_a_head(server: RunningServer) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for path in ("/", "/health", "/v1/models", "/static/app.js"):
            head, whole = client.head(path), client.get(path)
            assert head.status_code == 200
            assert head.content == b""
            assert head.headers["content-length"] == whole.headers["content-length"]
        assert client.head(CHAT).status_code == 405


@pytest.mark.timeout(4 * SILENCE + 60)
def test_the_head_of_a_request_may_not_trickle_in_either(trickling: Future[bool]) -> None:
    assert trickling.result()
