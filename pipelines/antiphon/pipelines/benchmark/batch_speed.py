"""Speed of many texts at once: the same prompts decoded together by several methods in turn. Knows no method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from antiphon.pipelines.benchmark.batch_methods import BatchMethod, BatchRun
from antiphon.pipelines.benchmark.run import Job
from antiphon.pipelines.progress import Progress

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel


@dataclass(frozen=True, slots=True)
class BatchMethodFigures:
    """What one method took: for each round, one run for each batch. Seconds are medians over rounds, then added up."""

    name: str
    is_peer: bool
    rounds: tuple[tuple[BatchRun, ...], ...]

    @property
    def seconds(self) -> float:
        """Seconds of all batches, prompts included."""
        return fsum(median(run.seconds for run in runs) for runs in zip(*self.rounds, strict=True))

    @property
    def tokens(self) -> float:
        """Tokens that all texts have said."""
        return fsum(median(run.tokens for run in runs) for runs in zip(*self.rounds, strict=True))

    @property
    def pace(self) -> float:
        """Tokens per second of all texts together, prompts included."""
        return self.tokens / self.seconds

    @property
    def texts(self) -> list[tuple[int, ...]]:
        """What was said, round by round."""
        return [text for runs in self.rounds for run in runs for text in run.texts]


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
    """Decode the jobs, ``at_once`` of them together, by every method in turn, ``rounds`` times.

    With ``warm_up`` the first batch is decoded by all once more before, which does not count.

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
        BatchMethodFigures(method.name, method.is_peer, tuple(tuple(each) for each in runs[method.name]))
        for method in methods
    ]


def batch_figures(measured: Sequence[BatchMethodFigures]) -> list[dict[str, Any]]:
    """One dictionary for each method: its own figures, and how many times the pace of others it has.

    ``x_plain`` is against the first method, our engine without drafts, ``x_best`` against the best other program (None
    without one), and ``identical`` the share of texts that are those of the first.
    """
    plain = measured[0]
    best = max((each.pace for each in measured if each.is_peer), default=None)
    return [
        {
            "method": each.name,
            "is_peer": each.is_peer,
            "tokens": round(each.tokens),
            "seconds": round(each.seconds, 3),
            "tokens_per_s": round(each.pace, 2),
            "x_plain": round(each.pace / plain.pace, 3),
            "x_best": best and round(each.pace / best, 3),
            "identical": round(mean(one == other for one, other in zip(each.texts, plain.texts, strict=True)), 4),
        }
        for each in measured
    ]
