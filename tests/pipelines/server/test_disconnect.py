"""Clients that disconnect before their answer starts: nothing is decoded for them, and they leave the queue."""

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

import pytest

from antiphon.accel import LanguageModel
from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.request_queue import GenerationJob, RequestQueue, Started
from antiphon.pipelines.server.service import Service
from tests.pipelines.server.conftest import tiny_service
from tests.pipelines.server.live_server import live_server
from tests.pipelines.server.test_security import GatedStream, started

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
