"""What drafting costs vLLM: `python -m tests.integrations.vllm.cost`; exits with 1 where it is more than is promised.

Milliseconds for each request and step, at 16 requests of 4,000 tokens; and what Python keeps after 2,000 requests.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

import typer

from antiphon.integrations.vllm.admission import Sources
from antiphon.integrations.vllm.proposer import Proposer
from antiphon.pipelines.benchmark.drafting import synthetic_recording
from tests.integrations.vllm.running import Engine, Request, proposer

TOGETHER, TOKENS, STEPS = 16, 4_000, 100
MOST_MS = 0.3
REQUESTS, MEASURED, MOST_GROWTH = 2_000, 400, 64 * 1024


class Timed:
    """A proposer with a clock: seconds of each of its steps."""

    def __init__(self, drafting: Proposer) -> None:
        self.drafting, self.seconds = drafting, list[float]()

    def meet(self, *arguments: Any) -> None:
        self.drafting.meet(*arguments)

    def propose(self, *arguments: Any, **options: Any) -> list[list[int]]:
        started = perf_counter()
        drafts = self.drafting.propose(*arguments, **options)
        self.seconds.append(perf_counter() - started)
        return drafts


def drafting_ms(rows: int = 16) -> tuple[float, float]:
    """Milliseconds for each request: of a step, the median and the mean; texts quote their prompts in short spans."""
    timed = Timed(proposer(rows))
    engine = Engine(timed)  # type: ignore[arg-type]
    for seed in range(TOGETHER):
        recording = synthetic_recording(TOKENS, seed)
        prompt = [token for reference in recording.references for token in reference]
        engine.add(Request(f"{seed}", prompt, list(recording.answer) * 4))
    while len(engine.running) == TOGETHER and len(timed.seconds) <= STEPS:
        engine.step()
    later = [1000 * seconds / TOGETHER for seconds in timed.seconds[1:]]  # the first reads all prompts
    typer.echo(f"reading {TOKENS:,} tokens: {1000 * timed.seconds[0] / TOGETHER:.2f} ms a request, once")
    return median(later), sum(later) / len(later)


def kept_bytes() -> list[int]:
    """What Python holds after every 400 of the requests, none of which runs then; 16 at a time, with references."""
    engine, held = Engine(proposer()), []
    tracemalloc.start()
    for number in range(1, REQUESTS + 1):
        tokens = Random(number).choices(range(1_000), k=600)
        engine.add(Request(f"{number}", tokens[:200], tokens[180:240], Sources((tuple(tokens[200:]),))))
        if number % TOGETHER == 0:
            for request in engine.running[::5]:
                engine.abort(request)
            while engine.running:
                engine.step()
        if number % MEASURED == 0:
            engine.add(Request("last", [1, 2], [3]))
            engine.step()
            engine.step()
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    return held


def main() -> int:
    """Print both, and say whether they hold."""
    middle, mean = drafting_ms()
    typer.echo(
        f"drafting: {middle:.3f} ms a request and step (mean {mean:.3f}), {TOGETHER} requests of {TOKENS:,} tokens"
    )
    held = kept_bytes()
    typer.echo(f"kept after 400, 800, ... requests: {', '.join(f'{size / 1024:.0f}' for size in held)} KiB")
    return int(middle > MOST_MS or held[-1] - held[0] > MOST_GROWTH)


if __name__ == "__main__":
    sys.exit(main())
