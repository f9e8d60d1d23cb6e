"""Clients at once against our server and transformers': python -m tests.load QUESTIONS. Exits with 1 if a line fails.

Both serve the same weights to the same questions, greedy, for the same time on this machine, one after the other; then
ours is killed and started again while clients ask. Prints what came of it: throughput, seconds to the first token,
requests that were lost, memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from antiphon.pipelines import resolve_model
from tests.load.clients import Outcome, Target, ask_for
from tests.load.crash_recovery import kill_and_restart
from tests.load.questions import Asked, load_questions
from tests.load.servers import Command, RunningServer, last_said, serving

LEAST = 3.0
"""Our throughput in theirs, at least."""
READY = 300
"""Seconds that a server has for its first answer: loading the model and making room for its cache are among them."""
GROWTH = 1.05
"""Memory at the end in that at the start, at most: after a third of the time, and after all of it."""


class How(Enum):
    """How transformers' server decodes."""

    BATCHING = "batching"
    PLAIN = "plain"


def measured(command: Command, target: Target, questions: list[Asked], *, clients: int, seconds: float) -> Outcome:
    """Ask a server of its own, and print a line.

    Raises:
        RuntimeError: it does not come up, or does not answer the first question, with which it makes itself ready.
    """
    with TemporaryDirectory() as folder, serving(command, Path(folder) / "log") as server:
        at = Target(server.url, target.model, target.max_tokens, target.takes_references)
        first = asyncio.run(ask_for(at, questions[-1:], clients=1, seconds=0.1, drain=READY))
        _check_answers(command, first, Path(folder) / "log")
        outcome, start = asyncio.run(_watched(at, server, questions, clients=clients, seconds=seconds))
        end = server.mebibytes
    told = f"{outcome.first_at(0.5):.2f} s, p95 {outcome.first_at(0.95):.2f} s"
    typer.echo(
        f"{command.name}: {outcome.per_second:.1f} tokens/s, {len(outcome.answers)} answers in {outcome.seconds:.0f} s "
        f"({len(outcome.begun)} unfinished), first token median {told}, lost "
        f"{dict(outcome.errors + outcome.malformed)}, memory {start:.0f} MiB after a third of the time, "
        f"{end:.0f} at the end"
    )
    if end > start * GROWTH:
        typer.echo(f"  memory grew by {end / start - 1:.1%}; {GROWTH - 1:.0%} are allowed for")
    return outcome


def _check_answers(command: Command, first: Outcome, log: Path) -> None:
    if not first.answers:
        why = dict(first.errors + first.malformed) or f"no answer within {READY} s"
        raise RuntimeError(f"{command.name} does not answer here ({why}). The last that it said: {last_said(log)}")


async def _watched(
    target: Target, server: RunningServer, questions: list[Asked], *, clients: int, seconds: float
) -> tuple[Outcome, float]:
    """What became of all questions, and the server's memory after a third of the time."""
    asking = asyncio.create_task(ask_for(target, questions, clients=clients, seconds=seconds))
    await asyncio.sleep(seconds / 3)
    start = server.mebibytes
    return await asking, start


def held_against(
    commands: Iterable[Command],
    otherwise: Command,
    target: Target,
    questions: list[Asked],
    *,
    clients: int,
    seconds: float,
) -> Iterator[Outcome]:
    """What became of the questions at each of these servers.

    Of one that cannot answer on this machine it is said why, and ``otherwise`` is asked in its place, once.
    """
    left, asked = list(commands), set[Command]()
    while left:
        command = left.pop(0)
        asked.add(command)
        try:
            yield measured(command, target, questions, clients=clients, seconds=seconds)
        except RuntimeError as error:
            typer.echo(str(error))
            left += [] if otherwise in asked or otherwise in left else [otherwise]


def main(
    questions: Annotated[str, typer.Argument(help="Recorded answers, JSONL, with passages.")] = "python-docs",
    model: Annotated[str, typer.Option(help="An embedded model, or a folder.")] = "smollm2",
    clients: Annotated[int, typer.Option(min=1)] = 16,
    passages: Annotated[int, typer.Option(min=1)] = 5,
    seconds: Annotated[float, typer.Option(min=1, help="For each server.")] = 300,
    kill_seconds: Annotated[float, typer.Option(help="For killing and starting again; 0 for none.")] = 60,
    max_tokens: Annotated[int, typer.Option(min=1)] = 128,
    against: Annotated[
        list[How] | None, typer.Option(help="Transformers' server, with batching or plainly; may be repeated.")
    ] = None,
) -> None:
    """Hold our server against transformers' under load."""
    asked, began = load_questions(questions, passages=passages), time.monotonic()
    folder = resolve_model(model)
    name = model if "/" not in model else Path(model).name
    ours = measured(
        Command.antiphon(model), Target("", name, max_tokens, True), asked, clients=clients, seconds=seconds
    )
    failed = bool(ours.errors or ours.malformed or ours.begun)
    commands = [Command.transformers(folder, is_batching=how is How.BATCHING) for how in against or ()]
    plainly = Command.transformers(folder, is_batching=False)
    at, ratios = Target("", folder, max_tokens, False), list[float]()
    for theirs in held_against(commands, plainly, at, asked, clients=clients, seconds=seconds):
        ratios.append(ours.per_second / theirs.per_second if theirs.tokens else float("inf"))
        typer.echo(f"  throughput {ratios[-1]:.2f} times as high")
    failed |= bool(commands) and min(ratios, default=0) < LEAST
    if kill_seconds:
        failed |= not kill_and_restart(model, asked, clients=clients, seconds=kill_seconds, max_tokens=max_tokens)
    typer.echo(f"{time.monotonic() - began:.0f} s in all")
    raise typer.Exit(code=1 if failed else 0)


if __name__ == "__main__":
    typer.run(main)
