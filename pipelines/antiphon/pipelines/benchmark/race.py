"""A race between programs: the same prompts, token by token the same model, and nothing but generated tokens counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from antiphon.accel.drafting.drafters import Blend
from antiphon.pipelines.benchmark.methods import GREEDY, AntiphonGenerate, TransformersGenerate
from antiphon.pipelines.benchmark.run import Job, MethodRun

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel

LOOKUP = "hf-lookup"
OURS = "antiphon"

TITLES = {
    GREEDY: "transformers, greedy",
    LOOKUP: "transformers, prompt lookup",
    OURS: "Antiphon",
}
"""The programs in the order of the race, with their names for people."""

WARM_UP_TOKENS = 2
"""Tokens that each program generates before it is timed."""


@dataclass(frozen=True, slots=True)
class RaceResult:
    """The runs of one program, one for each job.

    Attributes:
        name: a key of `TITLES`.
        runs: its runs.
    """

    name: str
    runs: tuple[MethodRun, ...]

    @property
    def tokens(self) -> int:
        """Generated tokens."""
        return sum(len(run.tokens) for run in self.runs)

    @property
    def seconds(self) -> float:
        """Seconds from the prompts to the last tokens."""
        return sum(run.seconds for run in self.runs)

    @property
    def first_token_seconds(self) -> float:
        """Mean seconds from a prompt to its first token."""
        return sum(run.first_token_seconds for run in self.runs) / len(self.runs)

    @property
    def decoding_tokens_per_second(self) -> float:
        """Tokens per second after the first token of each run."""
        return (self.tokens - len(self.runs)) / max(sum(run.decode_seconds for run in self.runs), 1e-9)

    @property
    def tokens_per_step(self) -> float:
        """Generated tokens per forward pass after the prefill."""
        return (self.tokens - len(self.runs)) / max(sum(run.steps for run in self.runs), 1)


OnProgress = Callable[[str, int, float], None]
"""Called with a key of `TITLES`, the tokens so far and the seconds so far, both of all its runs."""


def race(
    language_model: LanguageModel, jobs: Sequence[Job], limit: int, on_progress: OnProgress = lambda *_: None
) -> list[RaceResult]:
    """Decode all jobs with each program, one after the other, and return the results in the order of `TITLES`.

    Args:
        language_model: the model; transformers runs it as it is, and ours on its engine.
        jobs: prompts and their references.
        limit: maximum number of new tokens for each job.
        on_progress: shows the progress.
    """
    return [_run(name, language_model, jobs, limit, on_progress) for name in TITLES]


def _run(
    name: str, language_model: LanguageModel, jobs: Sequence[Job], limit: int, on_progress: OnProgress
) -> RaceResult:
    runs: list[MethodRun] = []
    started = [0.0]

    def report(tokens: int) -> None:
        done = sum(len(run.tokens) for run in runs), sum(run.seconds for run in runs)
        on_progress(name, done[0] + tokens, done[1] + perf_counter() - started[0])

    method: TransformersGenerate | AntiphonGenerate
    if name == OURS:
        method = AntiphonGenerate(name, Blend, None, language_model.options.engine, report)
    else:
        method = TransformersGenerate(name, report)
    method(language_model, jobs[0], WARM_UP_TOKENS)
    for job in jobs:
        started[0] = perf_counter()
        runs.append(method(language_model, job, limit))
        report(0)
    return RaceResult(name, tuple(runs))
