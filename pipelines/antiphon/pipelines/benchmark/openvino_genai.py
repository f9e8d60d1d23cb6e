"""OpenVINO GenAI as a way to decode: its own pipeline over the same weights, plain or with its own prompt lookup.

Knows how the program is asked and what it says of its time; how a model is exported for it is not known here.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from antiphon.pipelines.benchmark.run import Job, MethodRun

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel

GENAI, GENAI_LOOKUP = "openvino-genai", "openvino-genai-lookup"
"""Its two ways; the second may be followed by how many tokens it guesses at once: ``openvino-genai-lookup:8``."""

GUESSED, NGRAM = 5, 3
"""Tokens guessed at once where nobody says how many, and the longest n-gram that is looked up."""

PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}


@dataclass(slots=True)
class GenAIPipelines:
    """The program's pipelines for one language model, each opened by ``make`` when it is first asked for."""

    opened: dict[bool, Any] = field(default_factory=dict)
    make: Callable[..., Any] = field(default_factory=lambda: _pipeline)

    def get(self, language_model: LanguageModel, *, looks_up: bool) -> Any:
        """The pipeline that looks up n-grams of the prompt, or the plain one."""
        if looks_up not in self.opened:
            self.opened[looks_up] = self.make(language_model.model, looks_up=looks_up)
        return self.opened[looks_up]


@dataclass(frozen=True, slots=True)
class OpenVINOGenAI:
    """`LLMPipeline.generate` of OpenVINO GenAI on the same prompt ids, greedy, with ``guessed`` tokens at once, or 0.

    It computes in the model's precision, keeps keys and values in it, and takes as many threads as torch has. Prompts
    are read anew each time, as by all other methods.
    """

    name: str
    guessed: int
    pipelines: GenAIPipelines

    @property
    def is_peer(self) -> bool:
        """It is another program."""
        return True

    def __call__(self, language_model: LanguageModel, job: Job, limit: int) -> MethodRun:
        """Decode the job; the program itself says when its tokens were there.

        Raises:
            ImportError: the program is not installed; says the command.
            ValueError: an answer is to be replayed, or the model cannot be exported or computed with.
        """
        if job.answer is not None:
            raise ValueError(f"{self.name} cannot be led along a recorded answer; give a model instead of a shape.")
        pipeline = self.pipelines.get(language_model, looks_up=self.guessed > 0)
        import numpy as np
        import openvino

        config = generation_config(language_model, limit, self.guessed)
        ids = openvino.Tensor(np.array([job.prompt], dtype=np.int64))
        started = perf_counter()
        found = pipeline.generate(ids, config)
        seconds = perf_counter() - started
        told = found.perf_metrics
        return MethodRun(
            tokens=tuple(found.tokens[0]),
            seconds=seconds,
            first=told.get_ttft().mean / 1000,
            steps=len(told.raw_metrics.m_new_token_times) - 1,
            drafted=None,
        )


def guessed_tokens(own: str) -> int:
    """How many tokens prompt lookup guesses at once, as a command line says it after the method's name.

    Raises:
        ValueError: it is no positive number.
    """
    if not own:
        return GUESSED
    if not own.isdigit() or int(own) < 1:
        raise ValueError(f"{GENAI_LOOKUP}:{own} says no number of tokens; give 1 or more, as in {GENAI_LOOKUP}:8.")
    return int(own)


def generation_config(language_model: LanguageModel, limit: int, guessed: int) -> Any:
    """What the program is asked for: greedy, ``limit`` tokens at most, ends where the model ends."""
    import openvino_genai

    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = limit
    config.do_sample = False
    told = language_model.model.generation_config.eos_token_id
    ends = {end for end in (told if isinstance(told, list) else [told]) if end is not None and end >= 0}
    never = language_model.model.config.get_text_config(decoder=True).vocab_size  # without an end it asks a tokenizer
    config.eos_token_id, config.stop_token_ids = min(ends, default=never), ends or {never}
    if guessed:
        config.num_assistant_tokens, config.max_ngram_size = guessed, NGRAM
    return config


@dataclass(frozen=True, slots=True)
class Export:
    """What every pipeline of the program is opened with: its files, a tokenizer that has none, and how it computes."""

    graph: Path
    tokenizer: Any
    scheduler: Any
    options: Mapping[str, Any]


def export(model: Any, *, looks_up: bool) -> Export:
    """The model's export for the program, made on the first use.

    Raises:
        ImportError: the program is not installed; says the command.
        ValueError: the model cannot be exported or computed with.
    """
    try:
        import openvino_genai
    except ImportError as error:
        raise ImportError("OpenVINO GenAI is not installed: pip install 'antiphon[bench]'") from error
    import torch

    from antiphon.accel.engines.openvino.store import GRAPH
    from antiphon.pipelines.benchmark.stateful_graph import exported

    dtype = str(model.dtype).removeprefix("torch.")
    if model.device.type != "cpu" or dtype not in PRECISIONS:
        raise ValueError(
            f"OpenVINO GenAI is measured on CPUs in {' or '.join(PRECISIONS)}; the model is {dtype} on {model.device}."
        )
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False  # a prompt that comes again would not be read again
    scheduler.max_num_batched_tokens = 2**31 - 1  # prompts are read in one piece, as is the program's default
    with tempfile.TemporaryDirectory() as empty:
        tokenizer = openvino_genai.Tokenizer(empty)  # which has none: tokens go in and come out
    options: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": PRECISIONS[dtype],
        "KV_CACHE_PRECISION": PRECISIONS[dtype],  # the default is 8 bits, which is another model
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",
    }
    if looks_up:
        options["prompt_lookup"] = True
    return Export(exported(model) / GRAPH, tokenizer, scheduler, options)


def _pipeline(model: Any, *, looks_up: bool) -> Any:
    """The program's pipeline over the model's export."""
    found = export(model, looks_up=looks_up)
    import openvino_genai

    graph, weights = found.graph.read_text(encoding="utf-8"), _read(found.graph.with_suffix(".bin"))
    options = {"scheduler_config": found.scheduler, **found.options}
    return openvino_genai.LLMPipeline(graph, weights, found.tokenizer, "CPU", **options)


def _read(path: Any) -> Any:
    import numpy as np
    import openvino

    return openvino.Tensor(np.fromfile(path, dtype=np.uint8))
