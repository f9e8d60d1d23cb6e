"""Readiness: load balancers and systemd learn at once that a server starts or shuts down, before it stops listening."""

import asyncio
import gc
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from antiphon.accel import LanguageModel
from antiphon.pipelines.server import http_server
from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.http_server import DrainingServer, inherited_socket, listen_address, make_server
from antiphon.pipelines.server.service import make_service
from antiphon.pipelines.server.settings import ServerSettings
from tests.load.servers import free_port

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
