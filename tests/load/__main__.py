"""Load test of our server and transformers': python -m tests.load QUESTIONS. Exits with 1 if a check fails.

Both serve the same weights to the same greedy requests for the same time on this machine, one after the other. Then our
server is killed and restarted under load. Prints throughput, time to the first token, lost requests and memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from antiphon.pipelines import resolve_model
from tests.load.clients import LoadResult, Target, run_clients
from tests.load.collections import ServedCollections, make_collections
from tests.load.crash_recovery import kill_and_restart
from tests.load.questions import Question, load_questions
from tests.load.servers import Command, RunningServer, log_tail, serving

MIN_RATIO = 3.0
"""Minimum ratio of our throughput to transformers'."""
FIRST_ANSWER_TIMEOUT = 300
"""Seconds for the first answer, including loading the model and allocating its cache."""
MAX_GROWTH = 1.05
"""Maximum ratio of the memory at the end to that after a third of the time."""


class Batching(Enum):
    """Modes of transformers' server."""

    BATCHING = "batching"
    PLAIN = "plain"


def measure(command: Command, target: Target, questions: list[Question], *, clients: int, seconds: float) -> LoadResult:
    """Start a server, run clients against it, and print a line.

    Args:
        command: the command of the server.
        target: how it is called; its URL is replaced.
        questions: the questions.
        clients: the number of clients.
        seconds: the duration.

    Raises:
        RuntimeError: it does not start, or does not answer a first question, which warms it up.
    """
    with TemporaryDirectory() as folder, serving(command, Path(folder) / "log") as server:
        at = replace(target, url=server.url)
        first = asyncio.run(run_clients(at, questions[-1:], clients=1, seconds=0.1, drain=FIRST_ANSWER_TIMEOUT))
        _check_answers(command, first, Path(folder) / "log")
        result, start = asyncio.run(_run_with_memory(at, server, questions, clients=clients, seconds=seconds))
        end = server.mebibytes
    first_token = f"{result.first_token_quantile(0.5):.2f} s, p95 {result.first_token_quantile(0.95):.2f} s"
    typer.echo(
        f"{command.name}: {result.tokens_per_second:.1f} tokens/s, {len(result.answers)} answers in "
        f"{result.seconds:.0f} s ({len(result.unfinished)} unfinished), first token median {first_token}, lost "
        f"{dict(result.errors + result.malformed)}, memory {start:.0f} MiB after a third of the time, "
        f"{end:.0f} at the end"
    )
    if end > start * MAX_GROWTH:
        typer.echo(f"  memory grew by {end / start - 1:.1%}; the limit is {MAX_GROWTH - 1:.0%}")
    return result


def _check_answers(command: Command, first: LoadResult, log: Path) -> None:
    if not first.answers:
        why = dict(first.errors + first.malformed) or f"no answer within {FIRST_ANSWER_TIMEOUT} s"
        raise RuntimeError(
            f"{command.name} does not answer on this machine ({why}). The end of its output: {log_tail(log)}"
        )


async def _run_with_memory(
    target: Target, server: RunningServer, questions: list[Question], *, clients: int, seconds: float
) -> tuple[LoadResult, float]:
    """Return the result, and the server's memory in MiB after a third of the time."""
    asking = asyncio.create_task(run_clients(target, questions, clients=clients, seconds=seconds))
    await asyncio.sleep(seconds / 3)
    start = server.mebibytes
    return await asking, start


def compare(
    commands: Iterable[Command],
    replacement: Command,
    target: Target,
    questions: list[Question],
    *,
    clients: int,
    seconds: float,
) -> Iterator[LoadResult]:
    """Measure several servers.

    Args:
        commands: the commands of the servers.
        replacement: measured, once, in place of servers that cannot run on this machine, which are reported.
        target: how they are called.
        questions: the questions.
        clients: the number of clients.
        seconds: the duration for each.
    """
    left, tried = list(commands), set[Command]()
    while left:
        command = left.pop(0)
        tried.add(command)
        try:
            yield measure(command, target, questions, clients=clients, seconds=seconds)
        except RuntimeError as error:
            typer.echo(str(error))
            left += [] if replacement in tried or replacement in left else [replacement]


def main(
    questions: Annotated[str, typer.Argument(help="A JSONL file of recorded answers with passages.")] = "python-docs",
    model: Annotated[str, typer.Option(help="A bundled model, or a folder.")] = "smollm2",
    clients: Annotated[int, typer.Option(min=1)] = 16,
    passages: Annotated[int, typer.Option(min=1)] = 5,
    seconds: Annotated[float, typer.Option(min=1, help="Duration for each server.")] = 300,
    kill_seconds: Annotated[float, typer.Option(help="Duration of the crash recovery test; 0 skips it.")] = 60,
    max_tokens: Annotated[int, typer.Option(min=1)] = 128,
    collections: Annotated[int, typer.Option(min=0, help="Collections of our server, each with a key.")] = 0,
    against: Annotated[
        list[Batching] | None, typer.Option(help="Mode of transformers' server; may be repeated.")
    ] = None,
) -> None:
    """Compare our server with transformers' under load."""
    loaded, start = load_questions(questions, passages=passages), time.monotonic()
    folder = resolve_model(model)
    name = model if "/" not in model else Path(model).name
    target = Target("", name, max_tokens, True)
    with TemporaryDirectory() as place:
        served = make_collections(Path(place), loaded, collections) if collections else ServedCollections((), (), ())
        command = Command.antiphon(model, served.options)
        ours = measure(command, served.target(target), loaded, clients=clients, seconds=seconds)
    failed = bool(ours.errors or ours.malformed or ours.unfinished)
    commands = [Command.transformers(folder, is_batching=mode is Batching.BATCHING) for mode in against or ()]
    unbatched = Command.transformers(folder, is_batching=False)
    at, ratios = Target("", folder, max_tokens, False), list[float]()
    for theirs in compare(commands, unbatched, at, loaded, clients=clients, seconds=seconds):
        ratios.append(ours.tokens_per_second / theirs.tokens_per_second if theirs.tokens else float("inf"))
        typer.echo(f"  throughput {ratios[-1]:.2f} times as high")
    failed |= bool(commands) and min(ratios, default=0) < MIN_RATIO
    kept = {"max_tokens": max_tokens, "collections": collections}
    if kill_seconds:
        failed |= not kill_and_restart(model, loaded, clients=clients, seconds=kill_seconds, **kept)
    typer.echo(f"{time.monotonic() - start:.0f} s in total")
    raise typer.Exit(code=1 if failed else 0)


if __name__ == "__main__":
    typer.run(main)
