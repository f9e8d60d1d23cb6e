"""Methods that decode a batch of prompts, each through its program's public interface."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from antiphon.accel.drafting.drafters import DRAFTERS, RecyclingTable
from antiphon.pipelines.benchmark.methods import Job
from benchmarks.openvino_genai import (
    GENAI,
    GENAI_LOOKUP,
    GenAIPipelines,
    export_model,
    generation_config,
    parse_lookup_draft_tokens,
)

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel

PLAIN = "nothing"
"""Our engine without drafts, with which all others are compared."""

DEFAULT = (PLAIN, "blend", GENAI, *(f"{GENAI_LOOKUP}:{guessed}" for guessed in (3, 5, 10)))


@dataclass(frozen=True, slots=True)
class BatchRun:
    """One decoded batch.

    Attributes:
        outputs: Emitted token ids of each prompt.
        seconds: Time until the last output has ended, including prefill.
    """

    outputs: tuple[tuple[int, ...], ...]
    seconds: float

    @property
    def tokens(self) -> int:
        """Number of emitted tokens of all prompts."""
        return sum(map(len, self.outputs))


class BatchMethod(Protocol):
    """A way to decode a batch greedily."""

    @property
    def name(self) -> str:
        """Name on the command line."""

    @property
    def is_baseline(self) -> bool:
        """Whether another program decodes, with which ours is compared."""

    def __call__(self, language_model: LanguageModel, jobs: Sequence[Job], limit: int) -> BatchRun:
        """Decode all jobs at once.

        Args:
            language_model: Model that decodes.
            jobs: Prompts and references.
            limit: Maximum number of new tokens per job.
        """


@dataclass(frozen=True, slots=True)
class AntiphonBatch:
    """`LanguageModel.generate_batch` with one drafter; its recycling table is new for each batch."""

    name: str

    @property
    def is_baseline(self) -> bool:
        """False."""
        return False

    def __call__(self, language_model: LanguageModel, jobs: Sequence[Job], limit: int) -> BatchRun:
        """Decode a batch. See `BatchMethod`."""
        from antiphon.accel.text.messages import TokenizedPrompt

        prompts = [TokenizedPrompt("", job.prompt) for job in jobs]
        asked: dict[str, Any] = {"drafter": self.name, "recycling": RecyclingTable(language_model.name)}
        asked |= {"max_new_tokens": limit, "batch_size": len(jobs), "references": [job.references for job in jobs]}
        started = perf_counter()
        found = language_model.generate_batch(prompts, **asked)
        return BatchRun(tuple(each.tokens for each in found), perf_counter() - started)


@dataclass(frozen=True, slots=True)
class GenAIBatch:
    """`ContinuousBatchingPipeline.generate` of OpenVINO GenAI on the same prompt ids; see `OpenVINOGenAI`.

    Attributes:
        name: Name on the command line.
        num_draft_tokens: Draft tokens per step of its prompt lookup; 0 for plain decoding.
        pipelines: The open pipelines.
    """

    name: str
    num_draft_tokens: int
    pipelines: GenAIPipelines

    @property
    def is_baseline(self) -> bool:
        """True."""
        return True

    def __call__(self, language_model: LanguageModel, jobs: Sequence[Job], limit: int) -> BatchRun:
        """Decode a batch. See `BatchMethod`.

        Raises:
            ImportError: OpenVINO GenAI is not installed.
            ValueError: the model cannot be exported or run.
        """
        pipeline = self.pipelines.get(language_model, prompt_lookup=self.num_draft_tokens > 0)
        import numpy as np
        import openvino

        configs = [generation_config(language_model, limit, self.num_draft_tokens) for _ in jobs]
        prompts = [openvino.Tensor(np.array([job.prompt], dtype=np.int64)) for job in jobs]
        started = perf_counter()
        found = pipeline.generate(prompts, configs)
        seconds = perf_counter() - started
        return BatchRun(tuple(tuple(each.m_generation_ids[0]) for each in found), seconds)


def batch_methods_by_name(names: Sequence[str] | None) -> tuple[BatchMethod, ...]:
    """Return the methods of these names (default `DEFAULT`), each once, after our engine without drafts.

    Raises:
        ValueError: no method has a given name.
    """
    pipelines = GenAIPipelines(make=_pipeline)
    return tuple(_method(name, pipelines) for name in dict.fromkeys((PLAIN, *(names or DEFAULT))))


def _method(name: str, pipelines: GenAIPipelines) -> BatchMethod:
    head, _, own = name.partition(":")
    if name == GENAI:
        return GenAIBatch(name, 0, pipelines)
    if head == GENAI_LOOKUP:
        return GenAIBatch(name, parse_lookup_draft_tokens(own), pipelines)
    if name not in DRAFTERS:
        raise ValueError(f"There is no method {name!r}; choose from {', '.join((*DRAFTERS, GENAI, GENAI_LOOKUP))}.")
    return AntiphonBatch(name)


def _pipeline(model: Any, *, prompt_lookup: bool) -> Any:
    """Open a `ContinuousBatchingPipeline` on the model's export, under the file names that it expects."""
    exported = export_model(model, prompt_lookup=prompt_lookup)
    import openvino_genai

    with tempfile.TemporaryDirectory() as folder:
        for kind in (".xml", ".bin"):
            (Path(folder) / f"openvino_model{kind}").symlink_to(exported.graph.with_suffix(kind))
        make: Callable[..., Any] = openvino_genai.ContinuousBatchingPipeline
        return make(folder, exported.tokenizer, exported.scheduler, "CPU", **exported.options)
