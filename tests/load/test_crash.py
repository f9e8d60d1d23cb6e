"""A server that is killed under load loses no confirmed upload; clients get whole answers or broken connections."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from time import sleep
from typing import Any

import httpx
import pytest

from antiphon.retrieval import HashEmbedder, Passage, Retriever, index_passages
from tests.load.servers import Command, free_port, start_server
from tests.tiny import save_model, tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.timeout(600)]

KILLS, CLIENTS = 2, 6


def ask(url: str, ended: Event) -> tuple[int, int]:
    """Ask until the event is set; return the numbers of whole answers and of broken connections."""
    whole = broken = 0
    body: Any = {"model": "tiny", "messages": [{"role": "user", "content": "Bees?"}], "max_tokens": 24}
    while not ended.is_set():
        try:
            answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
        except httpx.TransportError:
            broken += 1
            sleep(0.2)
            continue
        if answer.status_code == 200:
            assert answer.json()["usage"]["completion_tokens"] > 0
            whole += 1
        else:
            assert {"message", "type", "param", "code"} <= answer.json()["error"].keys()
    return whole, broken


def upload(url: str, ended: Event) -> set[str]:
    """Upload small files until the event is set; return the names of files that the server has confirmed."""
    confirmed: set[str] = set()
    while not ended.is_set():
        name = f"upload {len(confirmed)}.txt"
        try:
            if httpx.post(f"{url}/documents", files={"file": (name, f"File {name}.")}, timeout=60).is_success:
                confirmed.add(name)
        except httpx.TransportError:
            sleep(0.2)
    return confirmed


def test_a_server_that_is_killed_under_load_keeps_what_it_confirmed(tmp_path: Path, passages: list[Passage]) -> None:
    model, index, log, port = tmp_path / "tiny", tmp_path / "index", tmp_path / "log", free_port()
    save_model(tiny_model(max_position_embeddings=2048), model)
    index_passages(passages, index, HashEmbedder())
    command, ended = Command.antiphon(str(model), ("--index", str(index), "--engine", "torch")), Event()
    server = start_server(command, port, log)
    with ThreadPoolExecutor(CLIENTS + 1) as pool:
        clients = [pool.submit(ask, server.url, ended) for _ in range(CLIENTS)]
        uploads = pool.submit(upload, server.url, ended)
        try:
            for _ in range(KILLS):
                sleep(4)
                server.kill()
                server = start_server(command, port, log)
            sleep(2)
        finally:
            ended.set()
    counts = [client.result() for client in clients]
    confirmed = uploads.result()
    listed = {Path(each["name"]).name for each in httpx.get(f"{server.url}/documents", timeout=60).json()["data"]}
    server.kill()
    assert all(sum(column) > 0 for column in zip(*counts, strict=True)), counts
    assert confirmed
    assert confirmed <= listed
    stored: Any = Retriever.open(index).index
    assert len(stored) >= len(passages) + len(confirmed)
