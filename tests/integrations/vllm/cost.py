"""Time and memory of drafting in vLLM: `python -m tests.integrations.vllm.cost`; exits with 1 if a limit is exceeded.

Measures milliseconds per request and step, at 16 requests of 4,000 tokens, and the memory held after 2,000 requests.
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
from benchmarks.drafting_cost import synthetic_recording
from tests.integrations.vllm.fake_engine import Engine, Request, make_proposer

BATCH_SIZE, TOKENS, STEPS = 16, 4_000, 100
MAX_MS = 0.3
REQUESTS, INTERVAL, MAX_GROWTH = 2_000, 400, 64 * 1024


class TimedProposer:
    """A proposer that records the seconds of each call.

    Args:
        proposer: The proposer that it calls.
    """

    def __init__(self, proposer: Proposer) -> None:
        self.proposer, self.seconds = proposer, list[float]()

    def prepare_step(self, *arguments: Any) -> None:
        self.proposer.prepare_step(*arguments)

    def propose(self, *arguments: Any, **options: Any) -> list[list[int]]:
        started = perf_counter()
        drafts = self.proposer.propose(*arguments, **options)
        self.seconds.append(perf_counter() - started)
        return drafts


def drafting_ms(num_draft_tokens: int = 16) -> tuple[float, float]:
    """Return median and mean milliseconds per request and step; answers quote their prompts in short spans."""
    timed = TimedProposer(make_proposer(num_draft_tokens))
    engine = Engine(timed)  # type: ignore[arg-type]
    for seed in range(BATCH_SIZE):
        recording = synthetic_recording(TOKENS, seed)
        prompt = [token for reference in recording.references for token in reference]
        engine.add(Request(f"{seed}", prompt, list(recording.answer) * 4))
    while len(engine.running) == BATCH_SIZE and len(timed.seconds) <= STEPS:
        engine.step()
    later = [1000 * seconds / BATCH_SIZE for seconds in timed.seconds[1:]]  # the first call indexes all prompts
    typer.echo(f"indexing {TOKENS:,} tokens: {1000 * timed.seconds[0] / BATCH_SIZE:.2f} ms a request, once")
    return median(later), sum(later) / len(later)


def held_bytes() -> list[int]:
    """Return the memory that Python holds after every 400 requests, 16 at a time with references, all ended."""
    engine, held = Engine(make_proposer()), []
    tracemalloc.start()
    for number in range(1, REQUESTS + 1):
        tokens = Random(number).choices(range(1_000), k=600)
        engine.add(Request(f"{number}", tokens[:200], tokens[180:240], Sources((tuple(tokens[200:]),))))
        if number % BATCH_SIZE == 0:
            for request in engine.running[::5]:
                engine.abort(request)
            while engine.running:
                engine.step()
        if number % INTERVAL == 0:
            engine.add(Request("last", [1, 2], [3]))
            engine.step()
            engine.step()
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    return held


def main() -> int:
    """Print both measurements; return 1 if one exceeds its limit."""
    median_ms, mean_ms = drafting_ms()
    typer.echo(
        f"drafting: {median_ms:.3f} ms per request and step (mean {mean_ms:.3f}), "
        f"{BATCH_SIZE} requests of {TOKENS:,} tokens"
    )
    held = held_bytes()
    typer.echo(f"held after 400, 800, ... requests: {', '.join(f'{size / 1024:.0f}' for size in held)} KiB")
    return int(median_ms > MAX_MS or held[-1] - held[0] > MAX_GROWTH)


if __name__ == "__main__":
    sys.exit(main())
