"""OpenVINO GenAI as a baseline: its pipeline on the same weights, without drafts or with its prompt lookup."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from antiphon.pipelines.benchmark.methods import Job, MethodRun

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from antiphon.accel import LanguageModel

GENAI, GENAI_LOOKUP = "openvino-genai", "openvino-genai-lookup"
"""Method names; the second may be followed by the number of draft tokens: ``openvino-genai-lookup:8``."""

DRAFT_TOKENS, NGRAM = 5, 3
"""Default number of draft tokens, and the longest n-gram that is looked up."""

PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}


class GenAIPipelines:
    """Pipelines of one language model, each opened when first used.

    Args:
        make: Opens a pipeline for a transformers model.
    """

    def __init__(self, make: Callable[..., Any] | None = None) -> None:
        self._make = make or _pipeline
        self._opened: dict[bool, Any] = {}

    def get(self, language_model: LanguageModel, *, prompt_lookup: bool) -> Any:
        """Return the pipeline with or without prompt lookup."""
        if prompt_lookup not in self._opened:
            self._opened[prompt_lookup] = self._make(language_model.model, prompt_lookup=prompt_lookup)
        return self._opened[prompt_lookup]


@dataclass(frozen=True, slots=True)
class OpenVINOGenAI:
    """`LLMPipeline.generate` of OpenVINO GenAI, greedy, on the same prompt ids.

    It computes and keeps its KV cache in the model's precision, uses as many threads as torch, and does not cache
    prompt prefixes, like all other methods.

    Attributes:
        name: Name on the command line.
        num_draft_tokens: Draft tokens per step of its prompt lookup; 0 for plain decoding.
        pipelines: The open pipelines.
    """

    name: str
    num_draft_tokens: int
    pipelines: GenAIPipelines

    is_baseline = True

    def __call__(self, language_model: LanguageModel, job: Job, limit: int) -> MethodRun:
        """Decode a job; OpenVINO GenAI itself reports the times of its tokens. See `Method`.

        Raises:
            ImportError: OpenVINO GenAI is not installed.
            ValueError: the model cannot be exported or run.
        """
        pipeline = self.pipelines.get(language_model, prompt_lookup=self.num_draft_tokens > 0)
        import numpy as np
        import openvino

        config = generation_config(language_model, limit, self.num_draft_tokens)
        ids = openvino.Tensor(np.array([job.prompt], dtype=np.int64))
        started = perf_counter()
        result = pipeline.generate(ids, config)
        seconds = perf_counter() - started
        metrics = result.perf_metrics
        return MethodRun(
            tokens=tuple(result.tokens[0]),
            seconds=seconds,
            first_token_seconds=metrics.get_ttft().mean / 1000,
            steps=len(metrics.raw_metrics.m_new_token_times) - 1,
            drafted=None,
        )


def parse_lookup_draft_tokens(text: str) -> int:
    """Return the number of draft tokens given after the method's name; `DRAFT_TOKENS` for an empty text.

    Raises:
        ValueError: ``text`` is not a positive number.
    """
    if not text:
        return DRAFT_TOKENS
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"{GENAI_LOOKUP}:{text} has no number of draft tokens; give 1 or more: {GENAI_LOOKUP}:8.")
    return int(text)


def generation_config(language_model: LanguageModel, limit: int, num_draft_tokens: int) -> Any:
    """Return a `GenerationConfig` of OpenVINO GenAI for greedy decoding that ends where the model ends.

    Args:
        language_model: Its generation configuration names the end-of-sequence tokens.
        num_draft_tokens: Draft tokens per step of prompt lookup; 0 for plain decoding.
    """
    import openvino_genai

    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = limit
    config.do_sample = False
    eos = language_model.model.generation_config.eos_token_id
    ends = {end for end in (eos if isinstance(eos, list) else [eos]) if end is not None and end >= 0}
    # Without any end token, GenAI would look for one in a tokenizer, which it does not have here.
    never = language_model.model.config.get_text_config(decoder=True).vocab_size
    config.eos_token_id, config.stop_token_ids = min(ends, default=never), ends or {never}
    if num_draft_tokens:
        config.num_assistant_tokens, config.max_ngram_size = num_draft_tokens, NGRAM
    return config


@dataclass(frozen=True, slots=True)
class GenAIModel:
    """Arguments of an OpenVINO GenAI pipeline.

    Attributes:
        graph: The exported graph (XML); its weights lie next to it.
        tokenizer: An empty tokenizer: prompts and outputs are token ids.
        scheduler: A `SchedulerConfig`.
        options: Compile options: precisions, threads, prompt lookup.
    """

    graph: Path
    tokenizer: Any
    scheduler: Any
    options: Mapping[str, Any]


def export_model(model: Any, *, prompt_lookup: bool, export: Callable[[Any], Path] | None = None) -> GenAIModel:
    """Export a transformers model for OpenVINO GenAI; later calls reuse the export.

    Args:
        export: Writes the graph and returns its folder; default `export_stateful`.

    Raises:
        ImportError: OpenVINO GenAI is not installed.
        ValueError: the model cannot be exported or run.
    """
    try:
        import openvino_genai
    except ImportError as error:
        raise ImportError(
            "OpenVINO GenAI is not installed. Run: pip install 'openvino-genai>=2026.4,<2026.5'"
        ) from error
    import torch

    from antiphon.accel.engines.openvino.store import GRAPH
    from benchmarks.stateful_graph import export_stateful

    dtype = str(model.dtype).removeprefix("torch.")
    if model.device.type != "cpu" or dtype not in PRECISIONS:
        raise ValueError(
            f"OpenVINO GenAI is measured on CPUs in {' or '.join(PRECISIONS)}; the model is {dtype} on {model.device}."
        )
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False  # a repeated prompt has to be processed again
    scheduler.max_num_batched_tokens = 2**31 - 1  # process prompts in one piece, as LLMPipeline does by default
    with tempfile.TemporaryDirectory() as empty:
        tokenizer = openvino_genai.Tokenizer(empty)
    options: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": PRECISIONS[dtype],
        "KV_CACHE_PRECISION": PRECISIONS[dtype],  # the default of 8 bits would change the outputs
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",
    }
    if prompt_lookup:
        options["prompt_lookup"] = True
    return GenAIModel((export or export_stateful)(model) / GRAPH, tokenizer, scheduler, options)


def _pipeline(model: Any, *, prompt_lookup: bool) -> Any:
    exported = export_model(model, prompt_lookup=prompt_lookup)
    import numpy as np

    return open_pipeline(exported, np.memmap(exported.graph.with_suffix(".bin"), dtype=np.uint8, mode="c"))


def open_pipeline(exported: GenAIModel, weights: NDArray[np.uint8]) -> Any:
    """Open an `LLMPipeline` on an exported graph and the contents of its weights file."""
    import openvino
    import openvino_genai

    graph = exported.graph.read_text(encoding="utf-8")
    options = {"scheduler_config": exported.scheduler, **exported.options}
    shared = openvino.Tensor(weights, shared_memory=True)
    pipeline = openvino_genai.LLMPipeline(graph, shared, exported.tokenizer, "CPU", **options)
    return _OwningPipeline(pipeline, weights)


@dataclass(frozen=True, slots=True)
class _OwningPipeline:
    """A pipeline, and the mapped file that its constants are read from."""

    pipeline: Any
    weights: Any

    def generate(self, *arguments: Any) -> Any:
        return self.pipeline.generate(*arguments)
