"""Load a model into the OpenVINO engine, or return the reason why torch runs it.

On first use the model is converted, self-tested against torch and timed; the results are stored in the user's cache.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from threading import Event, Thread
from typing import TYPE_CHECKING
from weakref import ref

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphon.accel.available_memory import available_memory
from antiphon.accel.drafting.draft import Draft
from antiphon.accel.drafting.drafters.recycling_table import Bigrams
from antiphon.accel.engines.openvino import compression, lm_head
from antiphon.accel.engines.openvino.compatibility import Compatibility, load_compatibility, save_compatibility
from antiphon.accel.engines.openvino.conversion import UnsupportedModelError, paged_model, windows_of
from antiphon.accel.engines.openvino.cost import step_cost
from antiphon.accel.engines.openvino.engine import OpenVINOEngine
from antiphon.accel.engines.openvino.graph import PagedGraph
from antiphon.accel.engines.openvino.paged_attention import BLOCK_SIZE
from antiphon.accel.engines.openvino.paged_memory import block_bytes
from antiphon.accel.engines.openvino.reduced_model import reduced_model
from antiphon.accel.engines.openvino.runtime import (
    PRECISIONS,
    is_installed,
    return_freed_memory,
    supports_precision,
    use_huge_pages,
    version,
)
from antiphon.accel.engines.openvino.self_test import run_self_test
from antiphon.accel.engines.openvino.store import fingerprint, folder_of, load_or_convert
from antiphon.accel.engines.openvino.weights import Owners, attach_weights, large_weights
from antiphon.accel.engines.torch import bigrams
from antiphon.accel.engines.torch.cost_store import is_credible
from antiphon.accel.engines.torch.engine import engine_of
from antiphon.accel.engines.torch.loading import checkpoint_of
from antiphon.accel.engines.torch.traits import declared_traits
from antiphon.accel.processor import processor_flags

if TYPE_CHECKING:
    import openvino

MACHINES = ("x86_64", "AMD64")
"""Processor architectures that OpenVINO's paged attention with tree masks supports."""

DEFAULT_MEMORY, MAX_MEMORY_SHARE = 2**30, 0.25
"""Default size of the KV cache: this many bytes, or one sequence of the model's full context if that is more, but at
most this share of the available memory."""

WORKING_MEMORY, SELF_TEST_MEMORY = 2 * 10**8, 2**28
"""Bytes that compilation needs besides the weights; size of the KV cache in the self-test of a reduced model."""

FUSING = "amx_bf16"
"""Instruction set with which OpenVINO runs whole MLP blocks as one operation."""

MIN_HUGE = 2**26
"""Models with fewer bytes of weights stay on pages of the usual size: the processor's caches hold most of them."""

COMPARED_ROWS, COMPARED_CONTEXT = (1, 8), 512
"""The steps whose times decide which engine is faster: a plain step and a step of 8 rows, after 512 tokens."""

STAGE, NUM_STAGES = "Preparing the model for OpenVINO, once", 3
"""Description and number of the stages of the first load: conversion, compilation and self-test, timing."""

ProgressCallback = Callable[[str, int, int], None]
"""Called as ``report(stage, done, total)`` during long operations."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The result of `load_engine`.

    Attributes:
        engine: The engine; None if torch runs the model.
        reason: Why the engine is used or not, in one sentence.
    """

    engine: OpenVINOEngine | None
    reason: str


def load_engine(
    model: PreTrainedModel,
    *,
    weights: str = "",
    memory: int | None = None,
    if_faster: bool = False,
    report: ProgressCallback | None = None,
) -> LoadResult:
    """Return the engine for a model, converted and self-tested on first use.

    The caller holds the lock of the model's torch engine, which both engines then share. A graph that fails the
    self-test is never used. Compressed weights differ too much from torch's for a close comparison, so the
    architecture is first tested in a small model with uncompressed weights.

    Args:
        weights: "int8" or "int4" to compress the weights, which changes the model's texts. Empty to keep them.
        memory: Size of the KV cache in bytes; None for the default.
        if_faster: Return no engine if its steps are slower than torch's.
        report: Called with the progress of the first load.
    """
    if (reason := unsupported_reason(model, weights)) is not None:
        return LoadResult(None, reason)
    key, setting = fingerprint(model, weights), _setting(model)
    result = stored_result = load_compatibility(key, setting)
    if result is not None and (reason := _rejection(result, if_faster=if_faster)):
        return LoadResult(None, reason)
    if weights and result is None and (reason := _uncompressed_failure(model, setting)):
        return LoadResult(None, reason)
    report = report or _ignore_progress
    try:
        engine, is_new = _compile(model, key, weights, memory, report)
        if is_new or result is None:
            report(STAGE, 1, NUM_STAGES)
            result = _test(engine, model, weights)
            engine.graph.release_exact_head()
            report(STAGE, 2, NUM_STAGES)
    except UnsupportedModelError as error:
        result = Compatibility(f"OpenVINO cannot run this model: {error}.")
    except (OSError, RuntimeError) as error:  # not stored: a full disk or short memory may be different next time
        return LoadResult(None, f"OpenVINO could not load the converted model: {_first_line(error)}")
    if not result.failure:
        engine.set_cost_measurement(lambda engine, remeasure: step_cost(engine, key, remeasure=remeasure))
        if if_faster and result.speedup is None:
            result = replace(result, speedup=_speedup(engine, model))
            report(STAGE, NUM_STAGES, NUM_STAGES)
    if result != stored_result:
        save_compatibility(key, setting, result)
        return_freed_memory()
    if reason := _rejection(result, if_faster=if_faster):
        return LoadResult(None, reason)
    Thread(target=_arrange_memory, args=(engine, _weight_bytes(model)), name="antiphon-memory", daemon=True).start()
    return LoadResult(engine, _description(engine, result, weights))


def _arrange_memory(engine: OpenVINOEngine, weight_bytes: int) -> None:
    engine.preallocate()
    if weight_bytes > MIN_HUGE:
        use_huge_pages()


def _weight_bytes(model: PreTrainedModel) -> int:
    return sum(each.nbytes for each in large_weights(model).values())


def unsupported_reason(model: PreTrainedModel, weights: str = "") -> str | None:
    """Return why OpenVINO cannot run this model on this machine, or None. Called before conversion.

    Args:
        weights: "int8" or "int4" for compressed weights, or empty.
    """
    if not is_installed():
        return "OpenVINO is not installed: pip install openvino."
    if weights and not compression.is_installed():
        return "Compressed weights need nncf: pip install 'antiphon[int8]'."
    if platform.machine() not in MACHINES:
        return f"OpenVINO's paged attention needs an x86 CPU, and this machine is {platform.machine()}."
    devices = {each.device.type for each in model.parameters()} - {"cpu"}
    if devices:
        return f"The model, or a part of it, is on {', '.join(sorted(devices))}, and this engine needs it on the CPU."
    precision = PRECISIONS.get(_dtype_name(model.dtype))
    if precision is None or not supports_precision(precision):
        return f"This CPU does not compute in {_dtype_name(model.dtype)} under OpenVINO."
    if getattr(model, "is_quantized", False):
        return "The model is quantized in a format that only torch runs."
    return None if weights else _memory_shortage(model)


def _head_bytes(model: PreTrainedModel) -> int:
    """Return the size in bytes of the LM head's matrix in 16 bits; 0 if the model has no LM head."""
    head = model.get_output_embeddings()
    weight = getattr(head, "weight", None)
    return 0 if weight is None else 2 * weight.numel()


def _fuses_mlp(model: PreTrainedModel) -> bool:
    """Return whether the CPU supports fused MLP blocks, and there is memory for their weights in float16.

    Until the first forward pass, fused blocks need an additional copy of their weights.
    """
    if model.dtype != torch.bfloat16 or FUSING not in processor_flags():
        return False
    return 2 * _weight_bytes(model) + WORKING_MEMORY <= available_memory()


def _memory_shortage(model: PreTrainedModel) -> str | None:
    """Return why the packed copy of the weights does not fit into memory, or None. Float32 weights have none."""
    packed = _weight_bytes(model) if model.dtype != torch.float32 else 0
    needed, available = packed + WORKING_MEMORY, available_memory()
    if needed <= available:
        return None
    return (
        f"OpenVINO needs {needed / 1e9:.1f} GB for its copy of the weights, and {available / 1e9:.1f} GB of memory "
        "are available."
    )


def _uncompressed_failure(model: PreTrainedModel, setting: str) -> str:
    """Return why the architecture fails the self-test with uncompressed weights, or an empty string."""
    stored = load_compatibility(fingerprint(model), setting)
    if stored is not None:
        return stored.failure
    try:
        tested = reduced_model(model, declared_traits(model).layer_kinds)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):  # it cannot be reduced
        tested = model
    result = load_engine(tested, memory=SELF_TEST_MEMORY)
    return "" if result.engine is not None else result.reason


def _rejection(result: Compatibility, *, if_faster: bool) -> str:
    """Return why the engine is not used, or an empty string."""
    if result.failure or not if_faster or result.speedup is None or result.speedup > 1:
        return result.failure
    return f"OpenVINO's steps take {1 / result.speedup:.2f} times as long as torch's here."


def _description(engine: OpenVINOEngine, result: Compatibility, weights: str) -> str:
    """Return why the engine is used."""
    name = f"OpenVINO {version()} in {engine.graph.precision}"
    if weights:
        return (
            f"{name} with {weights} weights, as requested: a different model than the loaded one. Its outputs are the "
            "same with and without drafts."
        )
    speedup = "" if result.speedup is None else f"; its steps are {result.speedup:.1f} times as fast as torch's here"
    return f"{name} agrees with torch{speedup}."


def _test(engine: OpenVINOEngine, model: PreTrainedModel, weights: str) -> Compatibility:
    windows = windows_of(declared_traits(model))
    found = run_self_test(engine, model, windows, max_compression=compression.MAX_DISTANCE.get(weights))
    wrong = [each for each in found if not each.agrees]
    return Compatibility(f"OpenVINO's logits differ from this model's; {wrong[0]}." if wrong else "")


def _speedup(engine: OpenVINOEngine, model: PreTrainedModel) -> float | None:
    """Return the engine's speed-up over torch: the geometric mean of a step with a draft and a step without.

    Returns None if another program disturbed the measurement; the next start then measures again.
    """
    own, other = engine.step_cost(), engine_of(model).step_cost()
    if not (is_credible(own) and is_credible(other)):
        return None
    ratios = (other.curve(COMPARED_CONTEXT, rows)[-1] / own.curve(COMPARED_CONTEXT, rows)[-1] for rows in COMPARED_ROWS)
    return float(prod(ratios) ** 0.5)


def _compile(
    model: PreTrainedModel, key: str, weights: str, memory: int | None, report: ProgressCallback
) -> tuple[OpenVINOEngine, bool]:
    """Return the engine with the stored or newly converted graph, and whether the graph was converted now."""
    traits, model_ref, is_converted = declared_traits(model), ref(model), Event()
    checkpoint = checkpoint_of(model)
    files = [] if checkpoint is None else [each.path for each in checkpoint.files]

    owners: Owners = []

    def convert() -> openvino.Model:
        is_converted.set()
        report(STAGE, 0, NUM_STAGES)
        graph = paged_model(model, traits)
        if not weights:
            return graph
        owners.extend(attach_weights(graph, model, files))
        return compression.compress(graph, weights)

    def find_bigrams(forward: Callable[[Draft, int], Tensor]) -> Bigrams | None:
        alive = model_ref()
        return None if alive is None else bigrams.load_or_compute_bigrams(alive, forward)

    converted = load_or_convert(folder_of(key), convert)
    owners[:] = attach_weights(converted, model, files)
    graph = PagedGraph(
        converted,
        weights=owners,
        precision=PRECISIONS[_dtype_name(model.dtype)],
        threads=torch.get_num_threads(),
        splits_head=_head_bytes(model) >= lm_head.MIN_BYTES,
        fuses_mlp=not weights and _fuses_mlp(model),
        is_compressed=bool(weights),
    )
    engine = OpenVINOEngine(
        graph,
        memory=_default_memory(graph, traits.max_positions) if memory is None else memory,
        window=min((window for window in windows_of(traits) if window), default=None),
        max_positions=traits.max_positions,
        lock=engine_of(model).lock,
        find_bigrams=find_bigrams,
    )
    return engine, is_converted.is_set()


def _default_memory(graph: PagedGraph, max_positions: int | None) -> int:
    """Return the default size of the KV cache in bytes: at least two blocks, the engine's minimum."""
    block = block_bytes(graph.cache_shapes, graph.precision)
    full_context = block * (1 + (max_positions or 0) // BLOCK_SIZE)
    most = int(MAX_MEMORY_SHARE * available_memory())
    return max(min(max(DEFAULT_MEMORY, full_context), most), 2 * block)


def _setting(model: PreTrainedModel) -> str:
    """Return the setting (precision and threads) for which a compatibility result is stored."""
    return f"{PRECISIONS[_dtype_name(model.dtype)]}-{torch.get_num_threads()}"


def _ignore_progress(stage: str, done: int, total: int) -> None:
    """Do nothing; used if the caller gives no callback."""


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
