"""Ways to decode several prompts at once, each through its own public interface. Knows no files and no tables."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from antiphon.accel.drafting.drafters import DRAFTERS, RunnersUp
from antiphon.pipelines.benchmark.openvino_genai import (
    GENAI,
    GENAI_LOOKUP,
    GenAIPipelines,
    export,
    generation_config,
    guessed_tokens,
)
from antiphon.pipelines.benchmark.run import Job

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel

PLAIN = "nothing"
"""Our engine without drafts: what all others are compared with."""

DEFAULT = (PLAIN, "blend", GENAI, *(f"{GENAI_LOOKUP}:{guessed}" for guessed in (3, 5, 10)))


@dataclass(frozen=True, slots=True)
class BatchRun:
    """Several prompts decoded at once: what each said, and the seconds until the last had ended, prompts included."""

    texts: tuple[tuple[int, ...], ...]
    seconds: float

    @property
    def tokens(self) -> int:
        """How many tokens all have said."""
        return sum(map(len, self.texts))


class BatchMethod(Protocol):
    """A way to decode under the name that a command line gives it."""

    @property
    def name(self) -> str:
        """The name."""

    @property
    def is_peer(self) -> bool:
        """Whether it is another program's: what people could take instead."""

    def __call__(self, language_model: LanguageModel, jobs: Sequence[Job], limit: int) -> BatchRun:
        """Decode all jobs at once, greedily, ``limit`` new tokens at most for each."""


@dataclass(frozen=True, slots=True)
class OurBatch:
    """`LanguageModel.generate_batch` with one drafter. What earlier batches have taught or read it does not know."""

    name: str

    @property
    def is_peer(self) -> bool:
        """It is this package's."""
        return False

    def __call__(self, language_model: LanguageModel, jobs: Sequence[Job], limit: int) -> BatchRun:
        """Decode the jobs."""
        from antiphon.accel.text.messages import TokenizedPrompt

        prompts = [TokenizedPrompt("", job.prompt) for job in jobs]
        asked: dict[str, Any] = {"drafter": self.name, "recycling": RunnersUp(language_model.name)}
        asked |= {"max_new_tokens": limit, "batch_size": len(jobs), "references": [job.references for job in jobs]}
        started = perf_counter()
        found = language_model.generate_batch(prompts, **asked)
        return BatchRun(tuple(each.tokens for each in found), perf_counter() - started)


@dataclass(frozen=True, slots=True)
class GenAIBatch:
    """`ContinuousBatchingPipeline.generate` of OpenVINO GenAI on the same prompt ids, ``guessed`` tokens at once, or 0.

    It computes as `OpenVINOGenAI` does.
    """

    name: str
    guessed: int
    pipelines: GenAIPipelines

    @property
    def is_peer(self) -> bool:
        """It is another program."""
        return True

    def __call__(self, language_model: LanguageModel, jobs: Sequence[Job], limit: int) -> BatchRun:
        """Decode the jobs.

        Raises:
            ImportError: the program is not installed; says the command.
            ValueError: the model cannot be exported or computed with.
        """
        pipeline = self.pipelines.get(language_model, looks_up=self.guessed > 0)
        import numpy as np
        import openvino

        configs = [generation_config(language_model, limit, self.guessed) for _ in jobs]
        prompts = [openvino.Tensor(np.array([job.prompt], dtype=np.int64)) for job in jobs]
        started = perf_counter()
        found = pipeline.generate(prompts, configs)
        seconds = perf_counter() - started
        return BatchRun(tuple(tuple(each.m_generation_ids[0]) for each in found), seconds)


def batch_methods_named(names: Sequence[str] | None) -> tuple[BatchMethod, ...]:
    """The methods of those names, our plain decoding before all others, each once; all usual ones without names.

    Raises:
        ValueError: there is no method of a name.
    """
    pipelines = GenAIPipelines(make=_pipeline)
    return tuple(_method(name, pipelines) for name in dict.fromkeys((PLAIN, *(names or DEFAULT))))


def _method(name: str, pipelines: GenAIPipelines) -> BatchMethod:
    head, _, own = name.partition(":")
    if name == GENAI:
        return GenAIBatch(name, 0, pipelines)
    if head == GENAI_LOOKUP:
        return GenAIBatch(name, guessed_tokens(own), pipelines)
    if name not in DRAFTERS:
        raise ValueError(f"There is no method {name!r}; choose from {', '.join((*DRAFTERS, GENAI, GENAI_LOOKUP))}.")
    return OurBatch(name)


def _pipeline(model: Any, *, looks_up: bool) -> Any:
    """The program's pipeline for many texts over the model's export, under the names that it knows files by."""
    found = export(model, looks_up=looks_up)
    import openvino_genai

    with tempfile.TemporaryDirectory() as folder:
        for kind in (".xml", ".bin"):
            (Path(folder) / f"openvino_model{kind}").symlink_to(found.graph.with_suffix(kind))
        make: Callable[..., Any] = openvino_genai.ContinuousBatchingPipeline
        return make(folder, found.tokenizer, found.scheduler, "CPU", **found.options)
