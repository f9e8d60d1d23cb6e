"""From a model to its engine, or to the sentence that says why it stays on torch. Knows all that decides it."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from threading import Event, Thread
from typing import TYPE_CHECKING
from weakref import ref

import psutil
import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphon.accel.drafting.draft import Draft
from antiphon.accel.drafting.drafters.recycling_table import Bigrams
from antiphon.accel.engines.openvino import compression
from antiphon.accel.engines.openvino.conversion import Unconvertible, paged_model, windows_of
from antiphon.accel.engines.openvino.cost import step_cost
from antiphon.accel.engines.openvino.engine import OpenVINOEngine
from antiphon.accel.engines.openvino.graph import PagedGraph
from antiphon.accel.engines.openvino.paged_memory import block_bytes
from antiphon.accel.engines.openvino.paged_attention import BLOCK
from antiphon.accel.engines.openvino.runtime import PRECISIONS, computes_in, is_installed, version
from antiphon.accel.engines.openvino.self_test import findings
from antiphon.accel.engines.openvino.store import fingerprint, folder_of, stored
from antiphon.accel.engines.openvino.compatibility import Compatibility, save_compatibility, load_compatibility
from antiphon.accel.engines.torch import bigrams
from antiphon.accel.engines.torch.engine import engine_of
from antiphon.accel.engines.torch.traits import declared_traits

if TYPE_CHECKING:
    import openvino

MACHINES = ("x86_64", "AMD64")
"""What paged attention with trees was made for."""

USUAL, SHARE = 2**30, 0.25
"""How much memory keys and values may take where nothing else is said: so many bytes, or what one text as long as the
model's context takes, if that is more; and of the memory that is free this share at most."""

ROWS, CONTEXT = (1, 8), 512
"""By which forwards the faster engine is found: a plain step, and one with a draft, after so many tokens."""

STAGE, STAGES = "Preparing the model for OpenVINO, once", 3
"""What takes long at the first start: it is converted, then compiled and compared with torch, then measured."""

Report = Callable[[str, int, int], None]
"""Called as ``report(stage, done, total)`` where something takes long."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The engine, or None; and in a sentence why."""

    engine: OpenVINOEngine | None
    reason: str


def load_engine(
    model: PreTrainedModel,
    *,
    weights: str = "",
    memory: int | None = None,
    if_faster: bool = False,
    report: Report | None = None,
) -> LoadResult:
    """The model's engine, converted and self-tested on the first use; without one, the model stays on torch.

    Keys and values take ``memory`` bytes at most. A graph that does not say what the model says is never used. With
    ``if_faster`` neither is one whose measured steps take more time than torch's. Whoever calls this holds the lock of
    the model's engine of torch, which both engines then share.

    With ``weights`` of few bits ("int8", "int4") it is another model that is run, in whose own words nothing changes
    with drafts. It is only made of a graph that says with whole weights what the model says.
    """
    if (obstacle := obstacle_of(model, weights)) is not None:
        return LoadResult(None, obstacle)
    if weights and (whole := load_engine(model, memory=memory, report=report)).engine is None:
        return whole
    key, setting = fingerprint(model, weights), _setting(model)
    known = kept = load_compatibility(key, setting)
    if known is not None and (reason := _against(known, if_faster=if_faster)):
        return LoadResult(None, reason)
    told = _silent if report is None else report
    try:
        engine, is_new = _compiled(model, key, weights, memory, told)
        if is_new or known is None:
            told(STAGE, 1, STAGES)
            known = _tried(engine, model, weights)
            told(STAGE, 2, STAGES)
    except Unconvertible as error:
        known = Compatibility(f"OpenVINO cannot run this model: {error}.")
    except (OSError, RuntimeError) as error:  # a full disk, or a machine that is short of memory: not for ever
        return LoadResult(None, f"OpenVINO could not load the converted model: {_first_line(error)}")
    if not known.obstacle:
        engine.costs(lambda engine, remeasure: step_cost(engine, key, remeasure=remeasure))
        if if_faster and known.ratio is None:
            known = replace(known, ratio=_ratio(engine, model))
            told(STAGE, STAGES, STAGES)
    if known != kept:
        save_compatibility(key, setting, known)
    if reason := _against(known, if_faster=if_faster):
        return LoadResult(None, reason)
    Thread(target=engine.claim, name="antiphon-memory", daemon=True).start()
    return LoadResult(engine, _for(engine, known, weights))


def obstacle_of(model: PreTrainedModel, weights: str = "") -> str | None:
    """Why this model cannot be run by OpenVINO on this machine, before anything is converted; None where it may be."""
    if not is_installed():
        return "OpenVINO is not installed: pip install 'antiphon[openvino]'."
    if weights and not compression.is_installed():
        return "Weights of 8 and 4 bits need nncf: pip install 'antiphon[int8]'."
    if platform.machine() not in MACHINES:
        return f"OpenVINO's paged attention is for x86 CPUs, and this machine is {platform.machine()}."
    devices = {each.device.type for each in model.parameters()} - {"cpu"}
    if devices:
        return f"The model, or a part of it, is on {', '.join(sorted(devices))}, and this engine runs on CPUs."
    precision = PRECISIONS.get(_name(model.dtype))
    if precision is None or not computes_in(precision):
        return f"This CPU does not compute in {_name(model.dtype)} under OpenVINO."
    if getattr(model, "is_quantized", False):
        return "The model is quantized in a way of its own, which torch runs."
    return None


def _against(known: Compatibility, *, if_faster: bool) -> str:
    """What speaks against the engine; empty where nothing does."""
    if known.obstacle or not if_faster or known.ratio is None or known.ratio > 1:
        return known.obstacle
    return f"OpenVINO's steps take {1 / known.ratio:.2f} times as long as torch's here."


def _for(engine: OpenVINOEngine, known: Compatibility, weights: str) -> str:
    if weights:
        return (
            f"OpenVINO {version()} in {engine.graph.precision} with weights of {weights}, as was asked for: another "
            "model than the one that was loaded, whose texts are its own, the same with drafts and without."
        )
    ratio = "" if known.ratio is None else f"; its steps are {known.ratio:.1f} times as fast as torch's here"
    return f"OpenVINO {version()} in {engine.graph.precision} agrees with torch{ratio}."


def _tried(engine: OpenVINOEngine, model: PreTrainedModel, weights: str) -> Compatibility:
    found = findings(engine, model, windows_of(declared_traits(model)), compressed=compression.APART.get(weights))
    wrong = [each for each in found if not each.agrees]
    return Compatibility(f"OpenVINO does not say what this model says; {wrong[0]}." if wrong else "")


def _ratio(engine: OpenVINOEngine, model: PreTrainedModel) -> float:
    """How many times faster than torch's the engine's measured forwards are, with a draft and without.

    Afterwards torch has given its copies of weights back.
    """
    torch_engine = engine_of(model)
    mine, its = engine.step_cost(), torch_engine.step_cost()
    torch_engine.rest()
    return float(prod(its.curve(CONTEXT, rows)[-1] / mine.curve(CONTEXT, rows)[-1] for rows in ROWS) ** 0.5)


def _compiled(
    model: PreTrainedModel, key: str, weights: str, memory: int | None, report: Report
) -> tuple[OpenVINOEngine, bool]:
    """The engine of the model's graph, and whether it was converted just now."""
    traits, known, made = declared_traits(model), ref(model), Event()

    def convert() -> openvino.Model:
        made.set()
        report(STAGE, 0, STAGES)
        engine_of(model).rest()  # what stands in for its layers there cannot be traced
        graph = paged_model(model, traits)
        return compression.compressed(graph, weights) if weights else graph

    def ask(forward: Callable[[Draft, int], Tensor]) -> Bigrams | None:
        asked = known()
        return None if asked is None else bigrams.find(asked, forward)

    stored_graph = stored(folder_of(key), convert)
    windows = [window for window in windows_of(traits) if window]
    graph = PagedGraph(
        stored_graph,
        precision=PRECISIONS[_name(model.dtype)],
        threads=torch.get_num_threads(),
        compressed=bool(weights),
    )
    engine = OpenVINOEngine(
        graph,
        memory=_memory(graph, traits.max_positions) if memory is None else memory,
        window=min(windows, default=None),
        positions=traits.max_positions,
        lock=engine_of(model).lock,
        bigrams=ask,
    )
    return engine, made.is_set()


def _memory(graph: PagedGraph, positions: int | None) -> int:
    """Bytes for keys and values where nothing else is said; two blocks at least, without which nothing can be run."""
    block = block_bytes(graph.heads, graph.precision)
    whole = block * (1 + (positions or 0) // BLOCK)
    return max(int(min(max(USUAL, whole), SHARE * psutil.virtual_memory().available)), 2 * block)


def _setting(model: PreTrainedModel) -> str:
    """What a verdict depends on beside the model and the CPU."""
    return f"{PRECISIONS[_name(model.dtype)]}-{torch.get_num_threads()}"


def _silent(stage: str, done: int, total: int) -> None:
    """Nobody asked for progress."""


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
