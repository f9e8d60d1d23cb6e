"""Crash recovery: kills a server under load while files are uploaded, and restarts it with the same index."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import typer

from antiphon.retrieval import LocalIndex, Retriever
from tests.load.clients import LoadResult, Target, key_header, run_clients
from tests.load.collections import ServedCollections, make_collections
from tests.load.questions import Question
from tests.load.servers import Command, RunningServer, free_port, start_server

KILLS = 3


def kill_and_restart(
    model: str, questions: Sequence[Question], *, clients: int, seconds: float, max_tokens: int, collections: int = 0
) -> bool:
    """Kill and restart a server `KILLS` times under load.

    Args:
        model: the model.
        questions: the questions of the clients.
        clients: the number of clients.
        seconds: the duration.
        max_tokens: the longest answer.
        collections: the number of collections with keys; 0: one index without keys.

    Returns:
        Whether clients received only answers, well-formed errors and broken connections, and the index opened each
        time with all its documents and all confirmed uploads.
    """
    with TemporaryDirectory() as folder:
        served = make_collections(Path(folder), questions, collections)
        before = sum(map(_count_passages, served.indexes))
        result, confirmed, uploads_kept = asyncio.run(
            _run(model, questions, served, clients=clients, seconds=seconds, max_tokens=max_tokens)
        )
        stored = sum(map(_count_passages, served.indexes))
    is_complete = uploads_kept and stored >= before + confirmed
    typer.echo(
        f"killed {KILLS} times: {len(result.answers)} answers, errors {dict(result.errors)}, malformed "
        f"{dict(result.malformed)}, index {'complete' if is_complete else 'INCOMPLETE'} "
        f"({stored} passages, {confirmed} uploads confirmed)"
    )
    return is_complete and not result.malformed and bool(result.answers) and bool(result.errors)


def _count_passages(folder: Path) -> int:
    index = Retriever.open(folder).index
    assert isinstance(index, LocalIndex)
    return len(index)


async def _run(
    model: str,
    questions: Sequence[Question],
    served: ServedCollections,
    *,
    clients: int,
    seconds: float,
    max_tokens: int,
) -> tuple[LoadResult, int, bool]:
    """Return the clients' results, the number of confirmed uploads, and whether all of them are listed at the end."""
    index = served.indexes[0]
    port, log = free_port(), index.with_name("log")
    command = Command.antiphon(model, served.options)
    server = await asyncio.to_thread(start_server, command, port, log)
    target = served.target(Target(server.url, model if "/" not in model else Path(model).name, max_tokens, True))
    headers = key_header(served.keys[0]) if served.keys else {}
    asking = asyncio.create_task(
        run_clients(target, questions, clients=clients, seconds=seconds, pause_after_errors=True)
    )
    confirmed: set[str] = set()
    uploading = asyncio.create_task(_upload(server.url, headers, confirmed))
    for _ in range(KILLS):
        await asyncio.sleep(seconds / (KILLS + 2))
        server.kill()
        server = await asyncio.to_thread(start_server, command, port, log)
    result = await asking
    uploading.cancel()
    listed = _listed(server, headers)
    server.kill()
    return result, len(confirmed), confirmed <= listed


async def _upload(url: str, headers: dict[str, str], confirmed: set[str]) -> None:
    """Upload small files one after another, and record the confirmed ones."""
    async with httpx.AsyncClient(timeout=60, headers=headers) as http:
        number = 0
        while True:
            number += 1
            name = f"upload {number}.txt"
            files = {"file": (name, f"Number {number} is written in no other file: {'word ' * (number % 50)}.")}
            try:
                if (await http.post(f"{url}/documents", files=files)).is_success:
                    confirmed.add(name)
            except httpx.TransportError:
                await asyncio.sleep(0.5)
            await asyncio.sleep(0.5)


def _listed(server: RunningServer, headers: dict[str, str]) -> set[str]:
    listed = httpx.get(f"{server.url}/documents", timeout=60, headers=headers).json()["data"]
    return {Path(each["name"]).name for each in listed}
