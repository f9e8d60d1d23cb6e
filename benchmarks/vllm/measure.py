"""Measures drafting methods in vLLM on the same prompt ids, at several batch sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import eq
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

from antiphon.accel.progress import Progress
from antiphon.pipelines.benchmark.jobs import sample_case
from antiphon.pipelines.benchmark.samples import RecordedSample
from benchmarks.vllm.engines import BOTH, HEAD, OURS, PLAIN

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel
    from benchmarks.vllm.worker import Decoded

SOURCES = ("passages", "prediction", "answers")
"""Where our drafts come from: the passages in the prompt; the sample's references as a prediction, which is not in the
prompt; or the references of all samples, like a store of earlier answers."""


LEAST = {"x_plain_least": "x_plain", "identical": "identical"}
"""Figures of several rounds that are the smallest value of a figure of each."""


class BatchEngine(Protocol):
    """A running engine with one drafting method."""

    @property
    def name(self) -> str:
        """Name of the method."""

    def decode(self, jobs: Sequence[Mapping[str, Any]], limit: int) -> Decoded:
        """Decode all jobs at once; see `VLLMEngine.decode`."""


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """Figures of one method at one batch size.

    Attributes:
        name: Name of the method.
        at_once: Number of concurrent requests.
        decoded: Outputs and times.
    """

    name: str
    at_once: int
    decoded: Decoded

    @property
    def outputs(self) -> list[list[int]]:
        """Emitted token ids of every request."""
        return [answer.tokens for answer in self.decoded.answers]

    @property
    def tokens_per_second(self) -> float:
        """Throughput of the steps without prefill."""
        return self.decoded.emitted / self.decoded.decoding if self.decoded.decoding else 0.0

    @property
    def end_to_end_tokens_per_second(self) -> float:
        """Throughput including prefill."""
        return self._sum(lambda answer: len(answer.tokens)) / self.decoded.seconds

    def as_dict(self) -> dict[str, Any]:
        """Return all figures; ``drafted`` and ``accepted`` are means per request."""
        tokens, steps = self._sum(lambda answer: len(answer.tokens)), self._sum(lambda answer: answer.steps)
        count = len(self.decoded.answers)
        return {
            "method": self.name,
            "at_once": self.at_once,
            "requests": count,
            "tokens": tokens,
            "tokens_per_step": round(tokens / steps, 3),
            "drafted": round(self._sum(lambda answer: answer.drafted) / count, 1),
            "accepted": round((tokens - steps) / count, 1),
            "tokens_per_s": round(self.tokens_per_second, 2),
            "tokens_per_s_whole": round(self.end_to_end_tokens_per_second, 2),
            "seconds": round(self.decoded.seconds, 3),
        }

    def _sum(self, value: Any) -> int:
        return sum(map(value, self.decoded.answers))


def figures_with_ratios(figures: Sequence[BatchFigures]) -> list[dict[str, Any]]:
    """Return the figures of one batch size with their ratios to other methods.

    ``x_plain`` is relative to vLLM without drafts, ``x_ngram`` to the faster of the two n-gram methods, ``x_suffix`` to
    suffix, ``x_lookup`` to the fastest of these three (None if they did not run); ``identical`` is the share of outputs
    equal to those without drafts.
    """
    speeds = {each.name: each.tokens_per_second for each in figures}
    plain = next(each for each in figures if each.name == PLAIN)
    ngram = max((speed for name, speed in speeds.items() if name.startswith("ngram")), default=None)
    lookup = max((speed for name, speed in speeds.items() if name not in (PLAIN, OURS, HEAD, BOTH)), default=None)
    return [
        each.as_dict()
        | {
            "x_plain": _ratio(each.tokens_per_second, plain.tokens_per_second),
            "x_plain_whole": _ratio(each.end_to_end_tokens_per_second, plain.end_to_end_tokens_per_second),
            "x_ngram": _ratio(each.tokens_per_second, ngram),
            "x_suffix": _ratio(each.tokens_per_second, speeds.get("suffix")),
            "x_lookup": _ratio(each.tokens_per_second, lookup),
            "identical": round(sum(map(eq, each.outputs, plain.outputs)) / len(each.outputs), 4),
        }
        for each in figures
    ]


def median_figures(rounds: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return the medians of the figures of one batch size over several rounds, for each method.

    ``x_plain_least``, ``x_lookup_least`` and ``x_lookup_most`` are the extremes of the ratios over all rounds,
    ``identical`` is the smallest share, and ``rounds`` the number of rounds.

    Args:
        rounds: For each round the result of `figures_with_ratios`, with the methods in any order.
    """
    rows = []
    for name in [row["method"] for row in rounds[0]]:
        own = [row for each in rounds for row in each if row["method"] == name]
        merged = {key: _median([row[key] for row in own]) for key in own[0]}
        ratios = [row["x_lookup"] for row in own if row["x_lookup"] is not None]
        merged |= {key: min(row[each] for row in own) for key, each in LEAST.items()}
        merged |= {"x_lookup_least": min(ratios, default=None), "x_lookup_most": max(ratios, default=None)}
        merged |= {"rounds": len(own)}
        rows.append(merged)
    return rows


def _median(values: Sequence[Any]) -> Any:
    """Return the median of numbers, rounded to three digits; other values are equal in all rounds."""
    first = values[0]
    return round(median(values), 3) if isinstance(first, float) else first


def measure_vllm(
    engines: Sequence[BatchEngine],
    jobs: Sequence[Mapping[str, Any]],
    *,
    batches: Sequence[int],
    limit: int,
    least: int,
    warm_up: int = 1,
    report: Progress | None = None,
) -> list[BatchFigures]:
    """Decode by every engine in turn, batch size by batch size.

    Every batch size has its own prompts, because some methods remember earlier answers. The engines take turns after
    each batch, so that a machine that becomes slower does so for all. KeyboardInterrupt ends the measurement after the
    last complete batch size.

    Args:
        engines: One engine per method, one of them without drafts.
        jobs: Prompts in token ids, with the sources of our drafts.
        batches: Numbers of concurrent requests.
        limit: Maximum number of new tokens per request.
        least: Minimum number of prompts per batch size.
        warm_up: Number of prompts, the last ones, that are decoded before and not measured.
        report: Called with stage, done and total.

    Raises:
        ValueError: no engine is without drafts, there are too few prompts, or an engine has ended.
    """
    counts = [max(least, at_once) for at_once in batches]
    if PLAIN not in [engine.name for engine in engines]:
        raise ValueError(f"{PLAIN!r} is not among the methods, and all others are compared with it.")
    if len(jobs) < sum(counts) + warm_up:
        raise ValueError(
            f"There are {len(jobs)} prompts; batch sizes {', '.join(map(str, batches))} with {least} prompts or more "
            f"and {warm_up} to warm up need {sum(counts) + warm_up}, because no prompt is decoded twice; give more "
            "samples."
        )
    for engine in engines:
        if warm_up:
            engine.decode(_jobs_for(engine, jobs[-warm_up:]), limit)
    figures: list[BatchFigures] = []
    done = 0
    try:
        for at_once, count in zip(batches, counts, strict=True):
            parts: dict[str, list[Decoded]] = {engine.name: [] for engine in engines}
            for start in range(done, done + count, at_once):
                if report is not None:
                    report("Decoding", start, sum(counts))
                part = jobs[start : min(start + at_once, done + count)]
                for engine in engines:
                    parts[engine.name].append(engine.decode(_jobs_for(engine, part), limit))
            done += count
            figures += [BatchFigures(name, at_once, _merged(each)) for name, each in parts.items()]
    except KeyboardInterrupt:
        pass  # the complete batch sizes are returned
    return figures


def vllm_jobs(
    language_model: LanguageModel, samples: Sequence[RecordedSample], sources: str, passages: int
) -> list[dict[str, Any]]:
    """Return the prompt of each sample in token ids, with the sources of our drafts.

    Args:
        language_model: Model whose tokenizer and prompt format are used.
        samples: Recorded samples.
        sources: One of `SOURCES`. Prompts contain passages for "passages" only; otherwise the query alone.
        passages: Number of passages in the prompt.

    Raises:
        ValueError: ``sources`` is not in `SOURCES`.
    """
    from antiphon.accel.text.messages import encode_prompt

    if sources not in SOURCES:
        raise ValueError(f"sources is {sources!r}; give passages, prediction or answers.")
    answers = [text for sample in samples for text in sample.references]
    jobs = []
    for sample in samples:
        case = sample_case(language_model, sample, passages if sources == "passages" else 0)
        given: dict[str, Any] = {"references": list(case.references)}
        if sources == "prediction":
            given = {"prediction": "\n".join(sample.references)}
        elif sources == "answers":
            given = {"references": answers}
        jobs.append({"prompt": encode_prompt(case.prompt, language_model.tokenizer), "sources": given})
    return jobs


def _jobs_for(engine: BatchEngine, jobs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the jobs for an engine; only ours gets the sources of drafts."""
    return [job if engine.name in (OURS, BOTH) else {**job, "sources": {}} for job in jobs]


def _merged(parts: Sequence[Decoded]) -> Decoded:
    first, *rest = parts
    for part in rest:
        first.answers += part.answers
        first.seconds += part.seconds
        first.decoding += part.decoding
        first.emitted += part.emitted
    return first


def _ratio(speed: float, other: float | None) -> float | None:
    return round(speed / other, 3) if other else None
