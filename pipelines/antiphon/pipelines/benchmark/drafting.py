"""What drafting costs by itself: time per step, time to read the texts, time to import. No model is run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from time import perf_counter
from typing import Any

from antiphon.accel.drafting.draft import DrafterFactory
from antiphon.accel.drafting.drafters import DRAFTERS
from antiphon.pipelines.benchmark.replay import Recording, replay_steps

SIZES = (1_000, 8_000, 32_000)
"""Reference tokens."""

PASSAGE = 200
ANSWER = 150
VOCABULARY = 32_000


@dataclass(frozen=True, slots=True)
class DraftingCost:
    """One drafter: milliseconds per step and milliseconds per 1,000 tokens read, by how many tokens there are."""

    drafter: str
    draft_ms: Mapping[int, float]
    build_ms: Mapping[int, float]

    @property
    def build_ratio(self) -> float:
        """Milliseconds per 1,000 tokens at the largest size over those at the smallest: 1 is exactly linear."""
        return self.build_ms[max(self.build_ms)] / self.build_ms[min(self.build_ms)]

    def as_dict(self) -> dict[str, Any]:
        """All figures under flat names."""
        draft = {f"draft_ms_{size}": round(ms, 4) for size, ms in self.draft_ms.items()}
        build = {f"build_ms_{size}": round(ms, 4) for size, ms in self.build_ms.items()}
        return {"drafter": self.drafter, **draft, **build, "build_ratio": round(self.build_ratio, 3)}


@dataclass(frozen=True, slots=True)
class DraftingReport:
    """The costs of all drafters at ``rows`` rows, and the seconds of the import beyond torch and transformers."""

    rows: int
    sizes: tuple[int, ...]
    costs: tuple[DraftingCost, ...]
    import_seconds: float

    def as_dict(self) -> dict[str, Any]:
        """All figures, for JSON."""
        costs = [cost.as_dict() for cost in self.costs]
        return {"rows": self.rows, "drafters": costs, "import_seconds": round(self.import_seconds, 4)}


def measure_drafting(*, rows: int = 32, sizes: Sequence[int] = SIZES, rounds: int = 5) -> DraftingReport:
    """Measure every drafter; each figure is the best of ``rounds`` rounds, the least disturbed one."""
    recordings = {size: synthetic_recording(size) for size in sizes}
    costs = tuple(_cost(name, factory, recordings, rows, rounds) for name, factory in DRAFTERS.items())
    return DraftingReport(rows, tuple(sizes), costs, import_seconds())


def synthetic_recording(size: int, seed: int = 0) -> Recording:
    """``size`` reference tokens in passages, and an answer that quotes them in spans of 1 to 30 tokens.

    Tokens follow Zipf's law over 32,000 ids, as words do, so the commonest one stands in every tenth place: texts in
    which little agrees by more than one token and much by one are the costly ones.
    """
    random = Random(seed)
    weights = list(accumulate(1 / rank for rank in range(1, VOCABULARY + 1)))
    tokens = random.choices(range(VOCABULARY), cum_weights=weights, k=size)
    references = tuple(tuple(tokens[start : start + PASSAGE]) for start in range(0, size, PASSAGE))
    answer: list[int] = []
    while len(answer) < ANSWER:
        start = random.randrange(size)
        answer += tokens[start : start + random.randint(1, 30)]
        answer += random.choices(range(VOCABULARY), cum_weights=weights, k=random.randint(1, 3))
    return Recording(tuple(tokens[:PASSAGE]), references, tuple(answer))


def _cost(
    name: str, factory: DrafterFactory, recordings: Mapping[int, Recording], rows: int, rounds: int
) -> DraftingCost:
    draft_ms, build_ms = {}, {}
    for size, recording in recordings.items():
        draft_ms[size] = min(_draft_ms(factory, recording, rows) for _ in range(rounds))
        build_ms[size] = min(_build_ms(factory, recording) for _ in range(rounds))
    return DraftingCost(name, draft_ms, build_ms)


def _draft_ms(factory: DrafterFactory, recording: Recording, rows: int) -> float:
    """Milliseconds per step, the first one left out: it reads the texts."""
    steps = list(replay_steps(recording, factory(), rows))[1:]
    return 1000 * sum(step.draft_seconds for step in steps) / len(steps)


def _build_ms(factory: DrafterFactory, recording: Recording) -> float:
    drafter = factory()
    started = perf_counter()
    drafter.begin(recording.prompt, recording.references)
    seconds = perf_counter() - started
    read = len(recording.prompt) + sum(map(len, recording.references))
    return 1000 * seconds / (read / 1000)


def import_seconds(module: str = "antiphon.accel", beyond: Sequence[str] = ("torch", "transformers")) -> float:
    """Seconds that a fresh interpreter spends importing all names of ``module``, less what ``beyond`` takes.

    Whatever ``beyond`` imports in turn counts as its own.
    """
    script = f"import {', '.join(beyond)}; from {module} import *"
    command = [sys.executable, "-X", "importtime", "-c", script]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return own_seconds(result.stderr, beyond)


def own_seconds(report: str, beyond: Sequence[str]) -> float:
    """The seconds of all imports in an ``-X importtime`` report that are neither of ``beyond`` nor caused by them.

    A line is "import time: self | cumulative | name", indented under the import that caused it, which comes after it.
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
