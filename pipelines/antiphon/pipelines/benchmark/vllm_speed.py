"""Speed in vLLM: the same prompt ids by every way to draft, at several batch sizes. Starts no engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from antiphon.pipelines.benchmark.cases import case_of
from antiphon.pipelines.benchmark.samples import RecordedSample
from antiphon.pipelines.benchmark.vllm_engines import OURS, PLAIN
from antiphon.pipelines.progress import Progress

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel
    from antiphon.pipelines.benchmark.vllm_worker import Decoded

SOURCES = ("passages", "prediction", "answers")
"""What our proposer is given beside the prompt: the passages that stand in it, or what does not stand in it: the
sample's own references as its prediction, or those of all samples, as a store of earlier answers keeps them."""


class BatchEngine(Protocol):
    """One way to draft, in an engine that runs."""

    @property
    def name(self) -> str:
        """The method's name."""

    def decode(self, jobs: Sequence[Mapping[str, Any]], limit: int) -> Decoded:
        """Decode all jobs at once, ``limit`` tokens at most."""


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """What one method took for the prompts of one batch size."""

    name: str
    at_once: int
    decoded: Decoded

    @property
    def texts(self) -> list[list[int]]:
        """What every request said, in token ids."""
        return [answer.tokens for answer in self.decoded.answers]

    @property
    def pace(self) -> float:
        """Tokens per second, of the steps in which no prompt was read."""
        return self.decoded.emitted / self.decoded.decoding if self.decoded.decoding else 0.0

    @property
    def whole_pace(self) -> float:
        """Tokens per second, prompts included."""
        return self._sum(lambda answer: len(answer.tokens)) / self.decoded.seconds

    def as_dict(self) -> dict[str, Any]:
        """The figures by themselves; ``drafted`` and ``accepted`` are of one request, the mean."""
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
            "tokens_per_s": round(self.pace, 2),
            "tokens_per_s_whole": round(self.whole_pace, 2),
            "seconds": round(self.decoded.seconds, 3),
        }

    def _sum(self, of: Any) -> int:
        return sum(map(of, self.decoded.answers))


def with_ratios(figures: Sequence[BatchFigures]) -> list[dict[str, Any]]:
    """The figures of one batch size: their own, how many times plain's pace each is, and whether texts are plain's.

    ``x_ngram`` is against the better of the two n-grams, ``x_suffix`` against suffix; None where they did not run.
    """
    paces = {each.name: each.pace for each in figures}
    plain = next(each for each in figures if each.name == PLAIN)
    ngram = max((pace for name, pace in paces.items() if name.startswith("ngram")), default=None)
    return [
        each.as_dict()
        | {
            "x_plain": _ratio(each.pace, plain.pace),
            "x_plain_whole": _ratio(each.whole_pace, plain.whole_pace),
            "x_ngram": _ratio(each.pace, ngram),
            "x_suffix": _ratio(each.pace, paces.get("suffix")),
            "identical": round(sum(map(_equal, each.texts, plain.texts)) / len(each.texts), 4),
        }
        for each in figures
    ]


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
    """Decode by every engine in turn, batch size by batch size, at least ``least`` prompts for each.

    No prompt is asked twice, for there are methods that remember what was said: every batch size has prompts of its
    own, as many as it has at once or more, and ``warm_up`` further ones, the last, do not count. They take turns by as
    many prompts as are decoded at once, so that a machine that becomes slower does so for all.

    Raises:
        ValueError: plain decoding is not among the engines, there are too few prompts, or an engine has ended.
    """
    counts = [max(least, at_once) for at_once in batches]
    if PLAIN not in [engine.name for engine in engines]:
        raise ValueError(f"{PLAIN!r} is not among the methods: all others are compared with it.")
    if len(jobs) < sum(counts) + warm_up:
        raise ValueError(
            f"There are {len(jobs)} prompts; batch sizes {', '.join(map(str, batches))} with {least} prompts or more "
            f"and {warm_up} to warm up take {sum(counts) + warm_up}, for none is asked twice; give more samples."
        )
    for engine in engines:
        if warm_up:
            engine.decode(_asked(engine, jobs[-warm_up:]), limit)
    figures, done = [], 0
    for at_once, count in zip(batches, counts, strict=True):
        parts: dict[str, list[Decoded]] = {engine.name: [] for engine in engines}
        for start in range(done, done + count, at_once):
            if report is not None:
                report("Decoding", start, sum(counts))
            part = jobs[start : min(start + at_once, done + count)]
            for engine in engines:
                parts[engine.name].append(engine.decode(_asked(engine, part), limit))
        done += count
        figures += [BatchFigures(name, at_once, _joined(each)) for name, each in parts.items()]
    return figures


def vllm_jobs(
    language_model: LanguageModel, samples: Sequence[RecordedSample], sources: str, passages: int
) -> list[dict[str, Any]]:
    """The prompt of each sample in token ids, and what our proposer is given with it.

    Only ``passages`` stand in prompts, the first so many references of a sample; otherwise its query is asked alone.

    Raises:
        ValueError: ``sources`` is none of `SOURCES`.
    """
    from antiphon.accel.text.messages import prompt_tokens

    if sources not in SOURCES:
        raise ValueError(f"sources is {sources!r}; give passages, prediction or answers.")
    answers = [text for sample in samples for text in sample.references]
    jobs = []
    for sample in samples:
        case = case_of(language_model, sample, passages if sources == "passages" else 0)
        given: dict[str, Any] = {"references": list(case.references)}
        if sources == "prediction":
            given = {"prediction": "\n".join(sample.references)}
        elif sources == "answers":
            given = {"references": answers}
        jobs.append({"prompt": prompt_tokens(case.prompt, language_model.tokenizer), "sources": given})
    return jobs


def _asked(engine: BatchEngine, jobs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The same prompts for all, and what drafts come from for our proposer alone."""
    return [job if engine.name == OURS else {**job, "sources": {}} for job in jobs]


def _joined(parts: Sequence[Decoded]) -> Decoded:
    first, *rest = parts
    for part in rest:
        first.answers += part.answers
        first.seconds += part.seconds
        first.decoding += part.decoding
        first.emitted += part.emitted
    return first


def _ratio(pace: float, other: float | None) -> float | None:
    return round(pace / other, 3) if other else None


def _equal(one: object, other: object) -> bool:
    return one == other
