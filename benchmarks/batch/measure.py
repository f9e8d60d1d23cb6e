"""Measures several methods on the same batches of prompts, in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from antiphon.accel.progress import Progress
from antiphon.pipelines.benchmark.methods import Job
from benchmarks.batch.methods import BatchMethod, BatchRun

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel


@dataclass(frozen=True, slots=True)
class BatchMethodFigures:
    """Figures of one method. Times are the median over the rounds of each batch, summed over the batches.

    Attributes:
        name: The method's name.
        is_baseline: Whether another program than Antiphon decoded.
        rounds: For each round, one run per batch.
    """

    name: str
    is_baseline: bool
    rounds: tuple[tuple[BatchRun, ...], ...]

    @property
    def seconds(self) -> float:
        """Time of all batches, including prefill."""
        return fsum(median(run.seconds for run in runs) for runs in zip(*self.rounds, strict=True))

    @property
    def tokens(self) -> float:
        """Emitted tokens of all prompts."""
        return fsum(median(run.tokens for run in runs) for runs in zip(*self.rounds, strict=True))

    @property
    def tokens_per_second(self) -> float:
        """Throughput of all prompts together, including prefill."""
        return self.tokens / self.seconds

    @property
    def outputs(self) -> list[tuple[int, ...]]:
        """Outputs of all prompts, round by round."""
        return [output for runs in self.rounds for run in runs for output in run.outputs]


def measure_batches(
    language_model: LanguageModel,
    jobs: Sequence[Job],
    methods: Sequence[BatchMethod],
    *,
    at_once: int,
    limit: int,
    rounds: int = 3,
    warm_up: bool = True,
    report: Progress | None = None,
) -> list[BatchMethodFigures]:
    """Decode the jobs in batches by every method in turn.

    Args:
        language_model: Model that decodes.
        jobs: Prompts and references.
        methods: Methods to compare; the first one is our engine without drafts.
        at_once: Number of prompts per batch.
        limit: Maximum number of new tokens per prompt.
        rounds: How often everything is decoded.
        warm_up: Whether all methods decode the first batch once before, unmeasured.
        report: Called with stage, done and total.

    Raises:
        ValueError: ``rounds`` or ``at_once`` is not positive.
    """
    if rounds < 1 or at_once < 1:
        raise ValueError(f"rounds is {rounds} and at_once {at_once}; each has to be 1 or more.")
    batches = [jobs[start : start + at_once] for start in range(0, len(jobs), at_once)]
    for batch in batches[:warm_up]:
        for method in methods:
            method(language_model, batch, limit)
    runs: dict[str, list[list[BatchRun]]] = {method.name: [[] for _ in range(rounds)] for method in methods}
    for number in range(rounds):
        for done, batch in enumerate(batches):
            if report is not None:
                report("Decoding", number * len(batches) + done, rounds * len(batches))
            for method in methods:
                runs[method.name][number].append(method(language_model, batch, limit))
    if report is not None:
        report("Decoding", rounds * len(batches), rounds * len(batches))
    return [
        BatchMethodFigures(method.name, method.is_baseline, tuple(tuple(each) for each in runs[method.name]))
        for method in methods
    ]


def batch_figures(measured: Sequence[BatchMethodFigures]) -> list[dict[str, Any]]:
    """Return one dictionary per method: its figures and ratios.

    ``x_plain`` is relative to the first method, our engine without drafts, ``x_best`` to the fastest baseline (None if
    none ran), ``identical`` is the share of outputs equal to those of the first method.
    """
    plain = measured[0]
    best = max((each.tokens_per_second for each in measured if each.is_baseline), default=None)
    return [
        {
            "method": each.name,
            "is_baseline": each.is_baseline,
            "tokens": round(each.tokens),
            "seconds": round(each.seconds, 3),
            "tokens_per_s": round(each.tokens_per_second, 2),
            "x_plain": round(each.tokens_per_second / plain.tokens_per_second, 3),
            "x_best": best and round(each.tokens_per_second / best, 3),
            "identical": round(mean(one == other for one, other in zip(each.outputs, plain.outputs, strict=True)), 4),
        }
        for each in measured
    ]
