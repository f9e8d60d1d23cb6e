"""Load a model into the OpenVINO engine, or return the reason why torch runs it.

On first use the model is converted, self-tested against torch and timed; the results are stored in the user's cache.
"""

from __future__ import annotations

import copy
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from math import prod
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphon.accel.drafting.draft import Draft
from antiphon.accel.drafting.drafters.head import Guesses
from antiphon.accel.drafting.drafters.recycling_table import Bigrams
from antiphon.accel.engines.openvino import compression
from antiphon.accel.engines.openvino.conversion import UnsupportedModelError, paged_model, windows_of
from antiphon.accel.engines.openvino.cost import step_cost
from antiphon.accel.engines.openvino.engine import OpenVINOEngine
from antiphon.accel.engines.openvino.opening import (
    GraphFacts,
    arrange_memory,
    build_engine,
    description,
    memory_shortage,
    places_of,
    rejection,
)
from antiphon.accel.engines.openvino.runtime import (
    PRECISIONS,
    is_installed,
    return_freed_memory,
    supports_precision,
)
from antiphon.accel.engines.openvino.self_test import run_self_test
from antiphon.accel.engines.openvino.store import (
    Compatibility,
    fingerprint,
    folder_of,
    load_compatibility,
    load_or_convert,
    save_compatibility,
)
from antiphon.accel.engines.openvino.weights import Owners, attach_weights, large_weights, weight_arrays
from antiphon.accel.engines.torch.bigrams import bigram_facts, load_or_compute_bigrams
from antiphon.accel.engines.torch.cost_store import is_credible
from antiphon.accel.engines.torch.engine import engine_of
from antiphon.accel.engines.torch.heads import MtpModule, TorchHead
from antiphon.accel.engines.torch.loading import checkpoint_of
from antiphon.accel.engines.torch.traits import Traits, declared_traits
from antiphon.accel.progress import Progress, ignore_progress
from antiphon.accel.quiet_loading import quiet_loading

if TYPE_CHECKING:
    import openvino

MACHINES = ("x86_64", "AMD64")
"""Processor architectures that OpenVINO's paged attention with tree masks supports."""

SELF_TEST_MEMORY = 2**28
"""Size of the KV cache in the self-test of a reduced model, in bytes."""

COMPARISONS = 3
"""Number of comparisons, one per start, after which a model that is faster on torch stays there."""

COMPARED_ROWS, COMPARED_CONTEXT = (1, 8), 512
"""The steps whose times decide which engine is faster: a plain step and a step of 8 rows, after 512 tokens."""

STAGE, NUM_STAGES = "Preparing the model for OpenVINO, once", 3
"""Description and number of the stages of the first load: conversion, compilation and self-test, timing."""


def load_engine(
    model: PreTrainedModel,
    *,
    weights: str = "",
    memory: int | None = None,
    if_faster: bool = False,
    report: Progress | None = None,
) -> tuple[OpenVINOEngine | None, str]:
    """Return the engine for a model or None, and the reason. On first use, the model is converted and self-tested.

    The caller holds the lock of the model's torch engine; the new engine shares this lock. A graph
    that fails the self-test is never used. Compressed weights differ too much from the model's own
    for a close comparison. So the architecture is first tested in a small model with uncompressed
    weights.

    Args:
        weights: "int8" or "int4" to compress the weights, which changes the model's texts. Empty to keep them.
        memory: Size of the KV cache in bytes; None for the default.
        if_faster: Return no engine if its steps are slower than torch's.
        report: Called with the progress of the first load.
    """
    if (reason := unsupported_reason(model, weights)) is not None:
        return None, reason
    facts = graph_facts(model, weights)
    result = stored_result = load_compatibility(facts.key, facts.setting)
    if result is not None and (reason := rejection(result, if_faster=if_faster)) and not _is_undecided(result):
        return None, reason
    if weights and result is None and (reason := _uncompressed_failure(model, facts.setting)):
        return None, reason
    report = report or ignore_progress
    try:
        engine, is_new = _compile(model, facts, memory, report)
        if is_new or result is None:
            report(STAGE, 1, NUM_STAGES)
            result = _test(engine, model, weights)
            engine.graph.release_exact_head()
            report(STAGE, 2, NUM_STAGES)
    except UnsupportedModelError as error:
        result = Compatibility(f"OpenVINO cannot run this model: {error}.")
    except (OSError, RuntimeError) as error:  # not stored: a full disk or short memory may be different next time
        return None, f"OpenVINO could not load the converted model: {_first_line(error)}"
    if not result.failure:
        engine.set_cost_measurement(lambda engine, remeasure: step_cost(engine, facts.key, remeasure=remeasure))
        if if_faster and (result.speedup is None or _is_undecided(result)):
            result = _compared(result, engine, model)
            report(STAGE, NUM_STAGES, NUM_STAGES)
    if result != stored_result:
        save_compatibility(facts.key, facts.setting, result)
        return_freed_memory()
    if reason := rejection(result, if_faster=if_faster):
        return None, reason
    arrange_memory(engine, facts)
    head = engine_of(model).head
    if isinstance(head, TorchHead) and isinstance(head.module, MtpModule) and engine.graph.lm_head is not None:
        head.module.find_guesses = partial(_find_guesses, engine)
    return engine, description(engine, result, weights)


def _weight_bytes(model: PreTrainedModel) -> int:
    return sum(each.nbytes for each in large_weights(model).values())


def unsupported_reason(model: PreTrainedModel, weights: str = "") -> str | None:
    """Return why OpenVINO cannot run this model on this machine, or None. Called before conversion.

    Args:
        weights: "int8" or "int4" for compressed weights, or empty.
    """
    if not is_installed():
        return "OpenVINO is not installed: pip install openvino."
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
    return None if weights else memory_shortage(_weight_bytes(model))


def _head_bytes(model: PreTrainedModel) -> int:
    """Return the size in bytes of the LM head's matrix in 16 bits; 0 if the model has no LM head."""
    head = model.get_output_embeddings()
    weight = getattr(head, "weight", None)
    return 0 if weight is None else 2 * weight.numel()


def _uncompressed_failure(model: PreTrainedModel, setting: str) -> str:
    """Return why the architecture fails the self-test with uncompressed weights, or an empty string."""
    stored = load_compatibility(fingerprint(model), setting)
    if stored is not None:
        return stored.failure
    try:
        tested = reduced_model(model, _traits(model).layer_kinds)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):  # it cannot be reduced
        tested = model
    engine, reason = load_engine(tested, memory=SELF_TEST_MEMORY)
    return reason if engine is None else ""


def _is_undecided(result: Compatibility) -> bool:
    """Return whether torch was faster, but in too few comparisons for a final decision."""
    return result.speedup is not None and result.speedup <= 1 and result.comparisons < COMPARISONS


def _compared(result: Compatibility, engine: OpenVINOEngine, model: PreTrainedModel) -> Compatibility:
    """Compare the engines once more, and add the comparison to the result if it is credible."""
    count = 0 if result.speedup is None else result.comparisons
    speedup = _speedup(engine, model, remeasure=count > 0)
    if speedup is None:
        return result
    mean = ((result.speedup or 1.0) ** count * speedup) ** (1 / (count + 1))
    return replace(result, speedup=mean, comparisons=count + 1)


def _test(engine: OpenVINOEngine, model: PreTrainedModel, weights: str) -> Compatibility:
    windows = windows_of(_traits(model))
    found = run_self_test(engine, model, windows, max_compression=compression.MAX_DISTANCE.get(weights))
    wrong = [each for each in found if not each.agrees]
    return Compatibility(f"OpenVINO's logits differ from this model's; {wrong[0]}." if wrong else "")


def _speedup(engine: OpenVINOEngine, model: PreTrainedModel, *, remeasure: bool = False) -> float | None:
    """Return how many times faster than torch the engine is (geometric mean of `COMPARED_ROWS`).

    Returns None if another program disturbed the measurement; the next start then measures again.
    """
    own, other = engine.step_cost(remeasure=remeasure), engine_of(model).step_cost(remeasure=remeasure)
    if not (is_credible(own) and is_credible(other)):
        return None
    ratios = (other.curve(COMPARED_CONTEXT, rows)[-1] / own.curve(COMPARED_CONTEXT, rows)[-1] for rows in COMPARED_ROWS)
    return float(prod(ratios) ** 0.5)


def _compile(
    model: PreTrainedModel, facts: GraphFacts, memory: int | None, report: Progress
) -> tuple[OpenVINOEngine, bool]:
    """Return the engine of the stored or newly converted graph, and whether it was converted now."""
    traits, model_ref, is_converted = _traits(model), ref(model), Event()
    files = _files(model)
    owners: Owners = []

    def convert() -> openvino.Model:
        is_converted.set()
        report(STAGE, 0, NUM_STAGES)
        graph = paged_model(model, traits)
        if not facts.weights:
            return graph
        owners.extend(attach_weights(graph, model, files))
        return compression.compress(graph, facts.weights)

    def find_bigrams(forward: Callable[[Draft, int], Tensor]) -> Bigrams | None:
        alive = model_ref()
        return None if alive is None else load_or_compute_bigrams(alive, forward)

    converted, head = load_or_convert(folder_of(facts.key), convert), engine_of(model).head
    owners[:] = attach_weights(converted, model, files)
    engine = build_engine(
        facts,
        converted,
        owners,
        memory=memory,
        max_length=None if traits.rope is None else traits.rope.position,
        gives_hidden_states=head is not None and not head.reads_cache,
        lock=engine_of(model).lock,
        find_bigrams=find_bigrams,
    )
    return engine, is_converted.is_set()


def _find_guesses(engine: OpenVINOEngine, output: Tensor, width: int) -> Guesses:
    """Return the guesses of an MTP layer by the model's LM head in 8 bits, which the engine has already."""
    assert engine.graph.lm_head is not None
    tokens, chances = engine.graph.lm_head.top_k(output.float().numpy(), width)
    return list(zip(tokens[0].tolist(), chances[0].tolist(), strict=True))


def _traits(model: PreTrainedModel) -> Traits:
    """Return the traits that a model declares. If layers keep a state, return the traits from torch's self-test."""
    traits = declared_traits(model)
    return engine_of(model).traits if traits.state_kinds else traits


def graph_facts(model: PreTrainedModel, weights: str = "") -> GraphFacts:
    """Return the facts that are needed to compile the graph of a model."""
    traits = _traits(model)
    return GraphFacts(
        key=fingerprint(model, weights),
        dtype=_dtype_name(model.dtype),
        threads=torch.get_num_threads(),
        weights=weights,
        weight_bytes=_weight_bytes(model),
        head_bytes=_head_bytes(model),
        windows=windows_of(traits),
        max_positions=traits.max_positions,
    )


def recorded_facts(model: PreTrainedModel, weights: str = "") -> dict[str, Any] | None:
    """Return the arguments with which `opening.open_engine` can open this model later; None if it cannot.

    The result is None if the weights were not read from safetensors files, or have changed since,
    or if layers of the model keep states or change their rotary frequencies.
    """
    traits, files = declared_traits(model), _files(model)
    if not files or traits.state_kinds or traits.rope is not None:
        return None
    places = {} if weights else places_of(weight_arrays(model, files), files)
    if places is None:
        return None
    return {"facts": asdict(graph_facts(model, weights)), "places": places, "bigrams": asdict(bigram_facts(model))}


def _files(model: PreTrainedModel) -> list[Path]:
    checkpoint = checkpoint_of(model)
    return [] if checkpoint is None else [each.path for each in checkpoint.files]


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


MIN_LAYERS = 2

LARGEST = {"intermediate_size": 1024, "vocab_size": 1024}
"""Largest values of dimensions that attention does not depend on."""


def reduced_model(model: PreTrainedModel, layer_kinds: Sequence[str]) -> PreTrainedModel:
    """Return a random model of the same class with few layers, but with every kind of layer.

    The weights only depend on the configuration. PyTorch's global random state is not changed.

    Args:
        model: The large model; only its configuration is read.

    Raises:
        AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError: The class does not support such a
            reduced configuration.
    """
    config = copy.deepcopy(model.config)
    text = config.get_text_config(decoder=True)
    count = max([MIN_LAYERS, *(1 + layer_kinds.index(kind) for kind in set(layer_kinds))])
    text.num_hidden_layers = min(count, text.num_hidden_layers)
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[: text.num_hidden_layers]
    for name, largest in LARGEST.items():
        if isinstance(size := getattr(text, name, None), int):
            setattr(text, name, min(size, largest))
    for each in (config, text):  # special tokens may lie outside of the smaller vocabulary
        each.pad_token_id = each.bos_token_id = each.eos_token_id = None
    implementation = model.config._attn_implementation
    with quiet_loading(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # `torch.manual_seed` would seed GPUs as well
        small: PreTrainedModel = type(model)._from_config(config, dtype=model.dtype, attn_implementation=implementation)
    small.eval()
    return small
