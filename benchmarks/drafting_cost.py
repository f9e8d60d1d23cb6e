"""Cost of drafting alone: time per step, time to index references, time to import. Runs no model.

python -m benchmarks.drafting_cost
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from time import perf_counter
from typing import Any

import typer
from rich.table import Table

from antiphon.accel.drafting.draft import DrafterFactory
from antiphon.accel.drafting.drafters import DRAFTERS
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.options import AsJson
from antiphon.pipelines.rendering.tables import result_table
from benchmarks.program import program
from benchmarks.replay import Recording, replay_steps

SIZES = (1_000, 8_000, 32_000)
"""Numbers of reference tokens."""

PASSAGE = 200
ANSWER = 150
VOCAB_SIZE = 32_000


@dataclass(frozen=True, slots=True)
class DraftingCost:
    """Costs of one drafter by number of reference tokens.

    Attributes:
        drafter: Name of the drafter.
        draft_ms: Milliseconds per step.
        build_ms: Milliseconds per 1,000 indexed tokens.
    """

    drafter: str
    draft_ms: Mapping[int, float]
    build_ms: Mapping[int, float]

    @property
    def build_ratio(self) -> float:
        """Indexing time per token at the largest size over that at the smallest; 1 is exactly linear."""
        return self.build_ms[max(self.build_ms)] / self.build_ms[min(self.build_ms)]

    def as_dict(self) -> dict[str, Any]:
        """Return all figures as a flat dictionary."""
        draft = {f"draft_ms_{size}": round(ms, 4) for size, ms in self.draft_ms.items()}
        build = {f"build_ms_{size}": round(ms, 4) for size, ms in self.build_ms.items()}
        return {"drafter": self.drafter, **draft, **build, "build_ratio": round(self.build_ratio, 3)}


@dataclass(frozen=True, slots=True)
class DraftingReport:
    """Costs of all drafters.

    Attributes:
        num_draft_tokens: Maximum number of draft tokens per step.
        sizes: Numbers of reference tokens.
        costs: One entry per drafter.
        import_seconds: Import time of `antiphon.accel` beyond torch and transformers.
    """

    num_draft_tokens: int
    sizes: tuple[int, ...]
    costs: tuple[DraftingCost, ...]
    import_seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Return all figures, for JSON."""
        costs = [cost.as_dict() for cost in self.costs]
        figures = {"num_draft_tokens": self.num_draft_tokens, "drafters": costs}
        return figures | {"import_seconds": round(self.import_seconds, 4)}


def measure_drafting(*, num_draft_tokens: int = 32, sizes: Sequence[int] = SIZES, rounds: int = 5) -> DraftingReport:
    """Measure every drafter; each figure is the minimum over the rounds, which is the least disturbed one.

    Args:
        num_draft_tokens: Maximum number of draft tokens per step.
        sizes: Numbers of reference tokens.
        rounds: Number of measurements of each figure.
    """
    recordings = {size: synthetic_recording(size) for size in sizes}
    costs = tuple(_cost(name, factory, recordings, num_draft_tokens, rounds) for name, factory in DRAFTERS.items())
    return DraftingReport(num_draft_tokens, tuple(sizes), costs, import_seconds())


def synthetic_recording(size: int, seed: int = 0) -> Recording:
    """Return synthetic references in passages and an answer that quotes them in spans of 1 to 30 tokens.

    Token frequencies follow Zipf's law over 32,000 ids, as those of words do: every tenth token is the most frequent
    one. There are many short matches and few long ones, which is the expensive case for drafters.

    Args:
        size: Number of reference tokens.
        seed: Seed of the random numbers.
    """
    random = Random(seed)
    weights = list(accumulate(1 / rank for rank in range(1, VOCAB_SIZE + 1)))
    tokens = random.choices(range(VOCAB_SIZE), cum_weights=weights, k=size)
    references = tuple(tuple(tokens[start : start + PASSAGE]) for start in range(0, size, PASSAGE))
    answer: list[int] = []
    while len(answer) < ANSWER:
        start = random.randrange(size)
        answer += tokens[start : start + random.randint(1, 30)]
        answer += random.choices(range(VOCAB_SIZE), cum_weights=weights, k=random.randint(1, 3))
    return Recording(tuple(tokens[:PASSAGE]), references, tuple(answer))


def _cost(
    name: str, factory: DrafterFactory, recordings: Mapping[int, Recording], num_draft_tokens: int, rounds: int
) -> DraftingCost:
    draft_ms, build_ms = {}, {}
    for size, recording in recordings.items():
        draft_ms[size] = min(_draft_ms(factory, recording, num_draft_tokens) for _ in range(rounds))
        build_ms[size] = min(_build_ms(factory, recording) for _ in range(rounds))
    return DraftingCost(name, draft_ms, build_ms)


def _draft_ms(factory: DrafterFactory, recording: Recording, num_draft_tokens: int) -> float:
    """Return milliseconds per step without the first step, which indexes the references."""
    steps = list(replay_steps(recording, factory(), num_draft_tokens))[1:]
    return 1000 * sum(step.draft_seconds for step in steps) / len(steps)


def _build_ms(factory: DrafterFactory, recording: Recording) -> float:
    drafter = factory()
    started = perf_counter()
    drafter.begin(recording.prompt, recording.references)
    seconds = perf_counter() - started
    indexed = len(recording.prompt) + sum(map(len, recording.references))
    return 1000 * seconds / (indexed / 1000)


def import_seconds(module: str = "antiphon.accel", beyond: Sequence[str] = ("torch", "transformers")) -> float:
    """Return the seconds that a new interpreter spends importing a module, without those of other modules.

    Args:
        module: Module whose public names are imported.
        beyond: Modules whose time does not count, including what they import.
    """
    script = f"import {', '.join(beyond)}; from {module} import *"
    command = [sys.executable, "-X", "importtime", "-c", script]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return own_seconds(result.stderr, beyond)


def own_seconds(report: str, beyond: Sequence[str]) -> float:
    """Sum the imports of an ``-X importtime`` report, except those of ``beyond`` and those that they caused.

    A line is "import time: self | cumulative | name". The name is indented below the import that caused it, which
    comes after it.

    Args:
        report: Output of ``python -X importtime``.
        beyond: Top-level modules to leave out.
    """
    total, skipping = 0, None
    for line in reversed(report.splitlines()):
        if not line.startswith("import time:") or "self [us]" in line:
            continue
        own, _, name = line.removeprefix("import time:").split("|")
        depth = len(name) - len(name.lstrip())
        if skipping is not None and depth > skipping:
            continue
        skipping = depth if name.strip().split(".")[0] in beyond else None
        total += 0 if skipping is not None else int(own)
    return total / 1e6


def drafting_table(report: DraftingReport) -> Table:
    """Return a table with one row per drafter: cost of a step and of indexing, by number of reference tokens."""
    columns = {"drafter": "drafter"}
    columns |= {f"draft_ms_{size}": f"step\n{size:,}" for size in report.sizes}
    columns |= {f"build_ms_{size}": f"index\n{size:,}" for size in report.sizes}
    figures = [cost.as_dict() for cost in report.costs]
    title = f"Milliseconds per step of {report.num_draft_tokens} draft tokens, and per 1,000 indexed reference tokens"
    return result_table(title, columns | {"build_ratio": "index\nratio"}, figures)


def drafting(as_json: AsJson = False) -> None:
    """Measure drafting alone: milliseconds per step and per 1,000 indexed tokens, and the import time."""
    report = measure_drafting()
    if as_json:
        typer.echo(json.dumps(report.as_dict()))
        return
    console.out.print(drafting_table(report))
    console.out.print(f"import antiphon.accel: {report.import_seconds:.3f} s beyond torch and transformers")


app = program(drafting)

if __name__ == "__main__":
    app()
