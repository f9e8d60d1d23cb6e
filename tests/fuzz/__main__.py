"""`make fuzz`: draw random requests, decode each with and without drafts, and count the differences."""

from __future__ import annotations

import os
import random
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Annotated

import typer

from tests.fuzz.check import TIE
from tests.fuzz.round import Report, begin, fuzz

ROUND = 250
SPAWN = get_context("spawn")
GIVE_UP = 4
"""Number of failed rounds after which the run stops: more would be the same fault again."""


def main(
    cases: Annotated[int, typer.Option(min=1, help="Number of requests.")] = 10_000,
    processes: Annotated[int, typer.Option(min=1, help="Number of processes.")] = min(2, os.cpu_count() or 1),
    seed: Annotated[int | None, typer.Option(help="Seed of the first round; random by default.")] = None,
    device: Annotated[str, typer.Option(help="Device of the models, such as cuda.")] = "cpu",
) -> None:
    """Compare random requests with plain decoding; exit with 1 if any differs."""
    first = random.SystemRandom().randrange(2**32) if seed is None else seed
    rounds = [(first + start, min(ROUND, cases - start)) for start in range(0, cases, ROUND)]
    typer.echo(f"{cases} cases in {len(rounds)} rounds on {processes} processes; repeat them with --seed {first}.")
    verdicts: Counter[str] = Counter()
    failures = 0
    started = monotonic()
    with (
        TemporaryDirectory(prefix="antiphon-fuzz-") as cache,
        ProcessPoolExecutor(processes, SPAWN, begin, (cache, device)) as pool,
    ):
        for report in pool.map(fuzz, *zip(*rounds, strict=True)):
            verdicts += report.verdicts
            if report.failure:
                failures += 1
                show(report, failures)
            typer.echo(f"  {verdicts.total() + failures} cases, {failures} failures, {monotonic() - started:.0f} s")
            if failures >= GIVE_UP:
                typer.echo(f"{failures} rounds failed; stopping.")
                pool.shutdown(cancel_futures=True)
                break
    typer.echo(f"{verdicts['tie']} ties: another token, within {TIE:g} nats of that of plain decoding.")
    typer.echo(f"{verdicts['error']} cases in which plain decoding and the engine raised the same error.")
    typer.echo(f"{verdicts.total() + failures} cases, {failures} failures")
    raise typer.Exit(code=1 if failures else 0)


def show(report: Report, number: int) -> None:
    """Print the smallest failing case with its traceback and how to run it again."""
    typer.echo(f"\nFailure {number}:\n{report.failure}\nThe first failing case:\n{report.first}\n")
    typer.echo(
        "Run it again: python -c 'from tests.fuzz.case import *; from tests.fuzz.check import *; check(Case(...))'"
    )


if __name__ == "__main__":
    typer.run(main)
