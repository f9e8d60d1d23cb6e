"""Speed benchmark: compares the times that several methods need to decode the same prompts with one model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from antiphon.accel.progress import Progress
from antiphon.pipelines.benchmark.methods import PROMPT_LOOKUP, Job, Method, MethodRun

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel

Rounds = Sequence[Sequence[MethodRun]]
"""The runs of one method: for each round, one run per job."""


@dataclass(frozen=True, slots=True)
class MethodFigures:
    """The measurements of one method. A total is a sum over the jobs; each job counts with its median over the rounds.

    Attributes:
        rounds: For each round, one run per job.
        is_baseline: Whether the method is another program.
    """

    name: str
    rounds: Rounds
    is_baseline: bool = False

    def total(self, value: Callable[[MethodRun], float]) -> float:
        """Take the median of ``value`` over the rounds for each job; return the sum over the jobs."""
        return sum(median(map(value, runs)) for runs in zip(*self.rounds, strict=True))

    @property
    def tokens(self) -> float:
        """Number of emitted tokens, including the first token of each job."""
        return self.total(lambda run: len(run.tokens))

    @property
    def steps(self) -> float:
        """Number of forward passes after the prefill."""
        return self.total(lambda run: run.steps)

    @property
    def seconds_per_token(self) -> float:
        """Decoding time per token. The first token of each job is not counted, because the prefill emits it."""
        return self.total(lambda run: run.decode_seconds) / max(self.tokens - self._jobs, 1)

    @property
    def first_token_seconds(self) -> float:
        """Mean time to the first token."""
        return self.total(lambda run: run.first_token_seconds) / self._jobs

    @property
    def end_to_end_seconds_per_token(self) -> float:
        """Time per token including prefill."""
        return self.total(lambda run: run.seconds) / max(self.tokens, 1)

    def as_dict(self) -> dict[str, Any]:
        """Return counts, rates and times; a value that the method does not report is None."""
        forwards = max(self.steps, 1)
        decoding = self.total(lambda run: run.decode_seconds)
        drafting = self._sum(lambda run: run.draft_seconds)
        drafted = self._sum(lambda run: run.drafted)
        return {
            "method": self.name,
            "is_baseline": self.is_baseline,
            "tokens": round(self.tokens),
            "steps": round(self.steps),
            "tokens_per_s": round(1 / self.seconds_per_token, 2),
            "tokens_per_step": round(self.tokens / (self.steps + self._jobs), 3),
            "rows_per_step": None if drafted is None else round(drafted / forwards, 2),
            "ms_per_step": round(1000 * decoding / forwards, 3),
            "draft_ms_per_step": None if drafting is None else round(1000 * drafting / forwards, 4),
            "first_token_ms": round(1000 * self.first_token_seconds, 2),
            "prefill_seconds": round(self.total(lambda run: run.first_token_seconds), 4),
            "seconds": round(decoding, 4),
        }

    @property
    def _jobs(self) -> int:
        return len(self.rounds[0])

    def _sum(self, value: Callable[[MethodRun], float | None]) -> float | None:
        """Return `total` of ``value``, or None if any run does not report the value."""
        is_reported = all(value(run) is not None for runs in self.rounds for run in runs)
        return self.total(lambda run: value(run) or 0.0) if is_reported else None


@dataclass(frozen=True, slots=True)
class Speed:
    """Figures of all methods; the first one decodes plainly, usually by transformers."""

    methods: tuple[MethodFigures, ...]

    def as_dict(self) -> list[dict[str, Any]]:
        """Return one dictionary per method: its figures and its speed-ups.

        ``speedup`` is relative to greedy decoding, without the prefill. ``speedup_rounds`` has this
        speed-up for each round. ``speedup_whole`` includes the prefill. ``speedup_lookup`` is
        relative to the faster of transformers' two prompt lookups (None if neither ran).
        ``speedup_best`` and ``speedup_best_whole`` are relative to the fastest baseline.
        ``identical`` is the share of outputs that equal the outputs of greedy decoding.
        """
        greedy = self.methods[0]
        baselines = [each for each in self.methods if each is greedy or each.is_baseline]
        best = min(each.seconds_per_token for each in baselines)
        best_whole = min(each.end_to_end_seconds_per_token for each in baselines)
        lookup = min((each.seconds_per_token for each in self.methods if each.name in PROMPT_LOOKUP), default=None)
        return [
            each.as_dict()
            | {
                "speedup": round(greedy.seconds_per_token / each.seconds_per_token, 3),
                "speedup_rounds": [
                    round(one / other, 3) for one, other in zip(_by_round(greedy), _by_round(each), strict=True)
                ],
                "speedup_lookup": lookup and round(lookup / each.seconds_per_token, 3),
                "speedup_whole": round(greedy.end_to_end_seconds_per_token / each.end_to_end_seconds_per_token, 3),
                "speedup_best": round(best / each.seconds_per_token, 3),
                "speedup_best_whole": round(best_whole / each.end_to_end_seconds_per_token, 3),
                "identical": round(_identical(each.rounds, greedy.rounds), 4),
            }
            for each in self.methods
        ]


def measure_speed(
    language_model: LanguageModel,
    jobs: Sequence[Job],
    methods: Sequence[Method],
    *,
    limit: int,
    rounds: int = 3,
    warm_up: int = 1,
    report: Progress | None = None,
) -> Speed:
    """Decode every job by every method in turn.

    After KeyboardInterrupt, the result has the figures of the complete rounds. If no round is
    complete, the result has the figures of the jobs that ended in the first round.

    Args:
        methods: Methods to compare; the first one decodes plainly, and all others are compared with it.
        limit: Maximum number of new tokens per job.
        rounds: How often each method decodes every job.
        warm_up: Number of jobs that every method decodes once before the measurement.

    Raises:
        ValueError: ``rounds`` is not positive, ``warm_up`` is negative.
    """
    from antiphon.accel.engines.torch.engine import traits_of

    if rounds < 1 or warm_up < 0:
        raise ValueError(f"rounds is {rounds} and warm_up {warm_up}; at least 1 round and 0 jobs are needed.")
    traits_of(language_model.model)  # determined now, because it runs forward passes that are not part of a method
    for job in jobs[:warm_up]:
        for method in methods:
            method(language_model, job, limit)
    measured: list[list[list[MethodRun]]] = []
    try:
        for number in range(rounds):
            measured.append([])
            for done, job in enumerate(jobs):
                if report is not None:
                    report("Decoding", number * len(jobs) + done, rounds * len(jobs))
                measured[-1].append([method(language_model, job, limit) for method in methods])
    except KeyboardInterrupt:
        measured = _complete(measured)
    if report is not None:
        report("Decoding", sum(map(len, measured)), sum(map(len, measured)))
    by_method = [[[runs[index] for runs in jobs_done] for jobs_done in measured] for index in range(len(methods))]
    return Speed(tuple(MethodFigures(each.name, by_method[i], each.is_baseline) for i, each in enumerate(methods)))


def _complete(measured: list[list[list[MethodRun]]]) -> list[list[list[MethodRun]]]:
    """Return the complete rounds, or else the complete jobs of the first round.

    If not even one job is complete, KeyboardInterrupt is raised.
    """
    if len(measured) > 1:
        return measured if len(measured[-1]) == len(measured[0]) else measured[:-1]
    if not measured or not measured[0]:
        raise KeyboardInterrupt
    return measured


def _by_round(figures: MethodFigures) -> list[float]:
    """Return the decoding time per token of each round."""
    return [MethodFigures(figures.name, [runs]).seconds_per_token for runs in figures.rounds]


def _identical(rounds: Rounds, others: Rounds) -> float:
    pairs = [pair for one, other in zip(rounds, others, strict=True) for pair in zip(one, other, strict=True)]
    return float(mean(one.tokens == other.tokens for one, other in pairs))
