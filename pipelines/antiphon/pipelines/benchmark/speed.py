"""Speed: the same texts decoded by several methods in turn on one model, and the time of each beside the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from antiphon.pipelines.benchmark.follow import Follower
from antiphon.pipelines.benchmark.methods import GREEDY, PROMPT_LOOKUP
from antiphon.pipelines.benchmark.run import Job, Method, MethodRun
from antiphon.pipelines.progress import Progress

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel

Rounds = Sequence[Sequence[MethodRun]]
"""The runs of one method: for each round, one for each job."""


@dataclass(frozen=True, slots=True)
class MethodFigures:
    """What one method took. Times are, for each job, the median of its rounds, and then added up over the jobs.

    ``is_peer`` says whether it is another program's.
    """

    name: str
    rounds: Rounds
    is_peer: bool = False

    def total(self, of: Callable[[MethodRun], float]) -> float:
        """Something of a run: the median of its rounds, added up over the jobs."""
        return sum(median(map(of, runs)) for runs in zip(*self.rounds, strict=True))

    @property
    def tokens(self) -> float:
        """Tokens emitted, the prefill's included."""
        return self.total(lambda run: len(run.tokens))

    @property
    def steps(self) -> float:
        """Forwards after the prefill."""
        return self.total(lambda run: run.steps)

    @property
    def pace(self) -> float:
        """Seconds for each token of the decoding phase: all but the one that the prefill gives anyway."""
        return self.total(lambda run: run.decoding) / max(self.tokens - self._jobs, 1)

    @property
    def first_token(self) -> float:
        """Seconds until the first token, the mean of the jobs: the prefill, and what comes before it."""
        return self.total(lambda run: run.first) / self._jobs

    @property
    def whole_pace(self) -> float:
        """Seconds for each token, the prefill included."""
        return self.total(lambda run: run.seconds) / max(self.tokens, 1)

    def as_dict(self) -> dict[str, Any]:
        """Counts, rates and times by themselves; what a method does not tell is None.

        ``host_ms_per_step`` is everything outside the model's own forward, measured the same way for all;
        ``loop_ms_per_step`` is our own account of it, where masks count as part of a forward.
        """
        forwards = max(self.steps, 1)
        decoding = self.total(lambda run: run.decoding)
        hosting = self._sum(lambda run: run.forward and run.decoding - run.forward)
        drafting, looping = (self._sum(of) for of in (lambda run: run.drafting, lambda run: run.looping))
        drafted = self._sum(lambda run: run.drafted)
        return {
            "method": self.name,
            "is_peer": self.is_peer,
            "tokens": round(self.tokens),
            "steps": round(self.steps),
            "tokens_per_s": round(1 / self.pace, 2),
            "tokens_per_step": round(self.tokens / (self.steps + self._jobs), 3),
            "rows_per_step": None if drafted is None else round(drafted / forwards, 2),
            "ms_per_step": round(1000 * decoding / forwards, 3),
            "host_ms_per_step": None if hosting is None else round(1000 * hosting / forwards, 3),
            "loop_ms_per_step": None if looping is None else round(1000 * looping / forwards, 3),
            "draft_ms_per_step": None if drafting is None else round(1000 * drafting / forwards, 4),
            "first_token_ms": round(1000 * self.first_token, 2),
            "prefill_seconds": round(self.total(lambda run: run.first), 4),
            "seconds": round(decoding, 4),
        }

    @property
    def _jobs(self) -> int:
        return len(self.rounds[0])

    def _sum(self, of: Callable[[MethodRun], float | None]) -> float | None:
        """The same as ``total`` of what some methods do not tell."""
        told = all(of(run) is not None for runs in self.rounds for run in runs)
        return self.total(lambda run: of(run) or 0.0) if told else None


@dataclass(frozen=True, slots=True)
class Speed:
    """The figures of every method, plain decoding by transformers first."""

    methods: tuple[MethodFigures, ...]

    def as_dict(self) -> list[dict[str, Any]]:
        """One dictionary for each method: its own figures, and how many times faster than the others it is.

        ``speedup`` is of the decoding phase against plain decoding, ``speedup_rounds`` the same round by round,
        ``speedup_whole`` with the prefill in, ``speedup_lookup`` against the better of the prompt lookups that ran
        (None without one), and ``identical`` the share of texts that are those of plain decoding. ``speedup_best`` and
        ``speedup_best_whole`` are against the best of all other programs, in the decoding phase and with the prefill.
        """
        greedy = self.methods[0]
        peers = [each for each in self.methods if each is greedy or each.is_peer]
        best, best_whole = min(each.pace for each in peers), min(each.whole_pace for each in peers)
        lookup = min((each.pace for each in self.methods if each.name in PROMPT_LOOKUP), default=None)
        return [
            each.as_dict()
            | {
                "speedup": round(greedy.pace / each.pace, 3),
                "speedup_rounds": [
                    round(one / other, 3) for one, other in zip(_paces(greedy), _paces(each), strict=True)
                ],
                "speedup_lookup": lookup and round(lookup / each.pace, 3),
                "speedup_whole": round(greedy.whole_pace / each.whole_pace, 3),
                "speedup_best": round(best / each.pace, 3),
                "speedup_best_whole": round(best_whole / each.whole_pace, 3),
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
    """Decode every job by every method, in turn, ``rounds`` times, after ``warm_up`` jobs that do not count.

    Jobs with an answer are replayed: the model's compute is real and its choices are the recorded ones.

    Raises:
        ValueError: ``rounds`` is not positive, ``warm_up`` is negative, there is no plain decoding to compare with,
            or a method emitted anything else than what was to be replayed.
    """
    if rounds < 1 or warm_up < 0:
        raise ValueError(f"rounds is {rounds} and warm_up {warm_up}; at least 1 round and 0 jobs are needed.")
    if not methods or methods[0].name != GREEDY:
        raise ValueError(f"The first method needs to be {GREEDY!r}: all others are compared with it.")
    runs: dict[str, list[list[MethodRun]]] = {method.name: [[] for _ in range(rounds)] for method in methods}
    with _decoding(language_model, jobs, limit) as decode:
        for job in jobs[:warm_up]:
            for method in methods:
                decode(method, job)
        for number in range(rounds):
            for done, job in enumerate(jobs):
                if report is not None:
                    report("Decoding", number * len(jobs) + done, rounds * len(jobs))
                for method in methods:
                    runs[method.name][number].append(decode(method, job))
    if report is not None:
        report("Decoding", rounds * len(jobs), rounds * len(jobs))
    return Speed(tuple(MethodFigures(method.name, runs[method.name], method.is_peer) for method in methods))


@contextmanager
def _decoding(
    language_model: LanguageModel, jobs: Sequence[Job], limit: int
) -> Iterator[Callable[[Method, Job], MethodRun]]:
    """How to decode one job by one method; where there are answers, the model follows them until the end."""
    from antiphon.accel.engines.torch.engine import traits_of

    traits_of(language_model.model)  # found out before the model is led by anything
    end = language_model.tokenizer.eos_token_id
    replayed = any(job.answer is not None for job in jobs)
    with Follower(language_model.model, end=end, longest=limit) if replayed else nullcontext() as follower:

        def decode(method: Method, job: Job) -> MethodRun:
            if follower is None or job.answer is None:
                return method(language_model, job, limit)
            follower.follow(len(job.prompt), job.answer)
            run = method(language_model, job, limit)
            _check(method.name, run.tokens, job.answer)
            return run

        yield decode


def _check(name: str, emitted: Sequence[int], answer: Sequence[int]) -> None:
    """Refuse a run that is not the replay that it should be."""
    if tuple(emitted) == tuple(answer):
        return
    pairs = zip(emitted, answer, strict=False)
    first = next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(emitted), len(answer)))
    raise ValueError(
        f"{name} emitted {len(emitted)} tokens that part from the {len(answer)} recorded ones at token {first}; its "
        "time says nothing. A replay needs a model that ends at the tokenizer's end-of-sequence token, and a method "
        "that reaches the model through its forward."
    )


def _paces(figures: MethodFigures) -> list[float]:
    """The pace of every round by itself."""
    return [MethodFigures(figures.name, [runs]).pace for runs in figures.rounds]


def _identical(rounds: Rounds, others: Rounds) -> float:
    pairs = [pair for one, other in zip(rounds, others, strict=True) for pair in zip(one, other, strict=True)]
    return float(mean(one.tokens == other.tokens for one, other in pairs))
