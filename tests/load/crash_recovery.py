"""A server that is killed while clients ask and files are uploaded, and started again on the same index."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import typer

from antiphon.retrieval import HashEmbedder, LocalIndex, Passage, Retriever, index_passages
from tests.load.clients import Outcome, Target, ask_for
from tests.load.questions import Asked
from tests.load.servers import Command, RunningServer, free_port, started

KILLS = 3


def kill_and_restart(model: str, questions: Sequence[Asked], *, clients: int, seconds: float, max_tokens: int) -> bool:
    """Kill and restart a server `KILLS` times; whether all that came was answers, errors or broken connections.

    The index has to open each time, with all that it had and every upload that was confirmed.
    """
    with TemporaryDirectory() as folder:
        place = Path(folder) / "index"
        texts = [text for asked in questions[:20] for text in asked.passages]
        index_passages([Passage.at(f"{n}.txt", 0, text) for n, text in enumerate(texts)], place, HashEmbedder())
        outcome, confirmed, kept = asyncio.run(
            _killed(model, questions, place, clients=clients, seconds=seconds, max_tokens=max_tokens)
        )
        index = Retriever.open(place).index
        assert isinstance(index, LocalIndex)
        stored = len(index)
    whole = kept and stored >= len(set(texts)) + confirmed
    typer.echo(
        f"killed {KILLS} times: {len(outcome.answers)} answers, errors {dict(outcome.errors)}, malformed "
        f"{dict(outcome.malformed)}, index {'whole' if whole else 'NOT WHOLE'} ({stored} passages, {confirmed} uploads "
        "confirmed)"
    )
    return whole and not outcome.malformed and bool(outcome.answers) and bool(outcome.errors)


async def _killed(
    model: str, questions: Sequence[Asked], index: Path, *, clients: int, seconds: float, max_tokens: int
) -> tuple[Outcome, int, bool]:
    """What clients were told, how many uploads were confirmed, and whether each is in the list afterwards."""
    port, log = free_port(), index.with_name("log")
    command = Command.antiphon(model, ("--index", str(index)))
    server = await asyncio.to_thread(started, command, port, log)
    target = Target(server.url, model if "/" not in model else Path(model).name, max_tokens, True)
    asking = asyncio.create_task(ask_for(target, questions, clients=clients, seconds=seconds, stays=True))
    confirmed: set[str] = set()
    uploading = asyncio.create_task(_upload(server.url, confirmed))
    for _ in range(KILLS):
        await asyncio.sleep(seconds / (KILLS + 2))
        server.kill()
        server = await asyncio.to_thread(started, command, port, log)
    outcome = await asking
    uploading.cancel()
    listed = _listed(server)
    server.kill()
    return outcome, len(confirmed), confirmed <= listed


async def _upload(url: str, confirmed: set[str]) -> None:
    """Upload one small file after the other, and note those that the server took."""
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
