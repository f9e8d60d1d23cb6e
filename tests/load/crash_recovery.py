"""Crash recovery: kills a server under load while files are uploaded, and restarts it with the same index."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import typer

from antiphon.retrieval import HashEmbedder, LocalIndex, Passage, Retriever, index_passages
from tests.load.clients import LoadResult, Target, run_clients
from tests.load.questions import Question
from tests.load.servers import Command, RunningServer, free_port, start_server

KILLS = 3


def kill_and_restart(
    model: str, questions: Sequence[Question], *, clients: int, seconds: float, max_tokens: int
) -> bool:
    """Kill and restart a server `KILLS` times under load.

    Args:
        model: the model.
        questions: the questions of the clients.
        clients: the number of clients.
        seconds: the duration.
        max_tokens: the longest answer.

    Returns:
        Whether clients received only answers, well-formed errors and broken connections, and the index opened each
        time with all its documents and all confirmed uploads.
    """
    with TemporaryDirectory() as folder:
        index_folder = Path(folder) / "index"
        texts = [text for question in questions[:20] for text in question.passages]
        index_passages([Passage.at(f"{n}.txt", 0, text) for n, text in enumerate(texts)], index_folder, HashEmbedder())
        result, confirmed, uploads_kept = asyncio.run(
            _run(model, questions, index_folder, clients=clients, seconds=seconds, max_tokens=max_tokens)
        )
        index = Retriever.open(index_folder).index
        assert isinstance(index, LocalIndex)
        stored = len(index)
    is_complete = uploads_kept and stored >= len(set(texts)) + confirmed
    typer.echo(
        f"killed {KILLS} times: {len(result.answers)} answers, errors {dict(result.errors)}, malformed "
        f"{dict(result.malformed)}, index {'complete' if is_complete else 'INCOMPLETE'} "
        f"({stored} passages, {confirmed} uploads confirmed)"
    )
    return is_complete and not result.malformed and bool(result.answers) and bool(result.errors)


async def _run(
    model: str, questions: Sequence[Question], index: Path, *, clients: int, seconds: float, max_tokens: int
) -> tuple[LoadResult, int, bool]:
    """Return the clients' results, the number of confirmed uploads, and whether all of them are listed at the end."""
    port, log = free_port(), index.with_name("log")
    command = Command.antiphon(model, ("--index", str(index)))
    server = await asyncio.to_thread(start_server, command, port, log)
    target = Target(server.url, model if "/" not in model else Path(model).name, max_tokens, True)
    asking = asyncio.create_task(
        run_clients(target, questions, clients=clients, seconds=seconds, pause_after_errors=True)
    )
    confirmed: set[str] = set()
    uploading = asyncio.create_task(_upload(server.url, confirmed))
    for _ in range(KILLS):
        await asyncio.sleep(seconds / (KILLS + 2))
        server.kill()
        server = await asyncio.to_thread(start_server, command, port, log)
    result = await asking
    uploading.cancel()
    listed = _listed(server)
    server.kill()
    return result, len(confirmed), confirmed <= listed


async def _upload(url: str, confirmed: set[str]) -> None:
    """Upload small files one after another, and record the confirmed ones."""
    async with httpx.AsyncClient(timeout=60) as http:
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


def _listed(server: RunningServer) -> set[str]:
    listed = httpx.get(f"{server.url}/documents", timeout=60).json()["data"]
    return {Path(each["name"]).name for each in listed}
