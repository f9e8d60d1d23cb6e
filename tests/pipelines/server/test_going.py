"""Clients that go before their answer is there: nothing is decoded for them, and they keep nobody's place."""

from __future__ import annotations

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
from antiphon.pipelines.server.jobs import Begun, TextJob
from antiphon.pipelines.server.service import Service
from antiphon.retrieval import HashEmbedder, Passage, index_passages
from tests.pipelines.server.conftest import tiny_service
from tests.pipelines.server.listening import listening

ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "How do bees live?"}], "max_tokens": 64}


@pytest.fixture
def service(typist: LanguageModel, passages: list[Passage], tmp_path: Path) -> Service:
    index_passages(passages, tmp_path / "index", HashEmbedder())
    return tiny_service(typist, tmp_path / "index", parallel=1, queue=2)


@contextmanager
def occupied(service: Service, model: LanguageModel) -> Iterator[None]:
    """The one place is taken until the block ends."""
    ends = threading.Event()

    def begin() -> Begun:
        ends.wait(30)
        return Begun(model.stream("x", max_new_tokens=1))

    loop = asyncio.new_event_loop()
    service.scheduler.submit([TextJob(begin, "someone", loop)])
    try:
        yield
    finally:
        ends.set()
        assert becomes(lambda: service.scheduler.running == 0)
        loop.close()


def sent(address: str, body: dict[str, Any]) -> socket.socket:
    """A connection on which this was asked."""
    place = urlsplit(address)
    connection = socket.create_connection((place.hostname, place.port))
    content = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return connection


def becomes(is_so: Callable[[], bool], seconds: float = 10) -> bool:
    """Whether it is so before long."""
    until = time.monotonic() + seconds
    while not is_so() and time.monotonic() < until:
        time.sleep(0.01)
    return is_so()


@pytest.mark.parametrize("stream", [False, True])
def test_whoever_goes_while_waiting_leaves_the_queue(service: Service, typist: LanguageModel, stream: bool) -> None:
    scheduler = service.scheduler
    with listening(create_app(service)) as address, occupied(service, typist):
        connections = [sent(address, {**ASKED, "stream": stream}) for _ in range(2)]
        assert becomes(lambda: scheduler.waiting == 2)
        for connection in connections:
            connection.close()
        assert becomes(lambda: scheduler.waiting == 0)
        [again] = [sent(address, {**ASKED, "stream": stream})]
        assert becomes(lambda: scheduler.waiting == 1), "there is room again"
        again.close()


def test_nothing_is_decoded_for_whoever_went_before_the_beginning(typist: LanguageModel) -> None:
    from antiphon.pipelines.server.jobs import Scheduler
    from tests.pipelines.server.test_security import Gate, Nobody

    gates: list[Gate] = []
    begins, goes = threading.Event(), threading.Event()

    def begin() -> Begun:
        begins.set()
        goes.wait(10)
        gates.append(Gate(typist))
        gates[-1].let.release()
        return Begun(gates[-1])  # type: ignore[arg-type]

    scheduler = Scheduler(parallel=1, waiting=1, watcher=Nobody())
    loop = asyncio.new_event_loop()
    job = TextJob(begin, "someone", loop)
    scheduler.submit([job])
    assert begins.wait(10)
    job.cancel()
    goes.set()
    assert becomes(lambda: scheduler.running == 0)
    assert [gate.steps for gate in gates] == [0]
    scheduler.close()
    loop.close()
