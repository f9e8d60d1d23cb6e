"""From a model to its engine, or to the sentence that says why it stays on torch. Knows all that decides it."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from transformers import PreTrainedModel

from antiphon.accel.drafting.running_cost import RunningCost
from antiphon.accel.engines.openvino.conversion import Unconvertible, paged_model, windows_of
from antiphon.accel.engines.openvino.cost import step_cost
from antiphon.accel.engines.openvino.engine import OpenVINOEngine
from antiphon.accel.engines.openvino.graph import PagedGraph
from antiphon.accel.engines.openvino.runtime import PRECISIONS, computes_in, core, is_installed, version
from antiphon.accel.engines.openvino.self_test import findings
from antiphon.accel.engines.openvino.store import fingerprint, folder_of, stored
from antiphon.accel.engines.torch.engine import engine_of
from antiphon.accel.engines.torch.traits import Traits, declared
from antiphon.accel.files import write

MACHINES = ("x86_64", "AMD64")
"""What paged attention with trees was made for."""

MOST = 4 * 2**30
SHARE = 0.25
"""How much memory keys and values may take where nothing else is said: so many bytes, or this share of what is free."""

TRIED = 1
"""Raised whenever the self-test comes to ask for more."""

ROWS, CONTEXT = (1, 8), 512
"""By which forwards the faster engine is found: a plain step, and one with a draft, after so many tokens."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The engine, or None; and in a sentence why."""

    engine: OpenVINOEngine | None
    reason: str


def open_engine(model: PreTrainedModel, *, memory: int | None = None) -> Opened:
    """The model's engine, converted and self-tested on the first use; without one, the model stays on torch.

    Keys and values take ``memory`` bytes at most. A graph that does not say what the model says is never used.
    """
    if (obstacle := obstacle_of(model)) is not None:
        return Opened(None, obstacle)
    traits = declared(model)
    key = fingerprint(model)
    folder = folder_of(key)
    try:
        graph = PagedGraph(
            stored(folder, lambda: paged_model(model, traits)),
            precision=PRECISIONS[_name(model.dtype)],
            threads=torch.get_num_threads(),
        )
    except Unconvertible as error:
        return Opened(None, f"OpenVINO cannot run this model: {error}.")
    except (OSError, RuntimeError) as error:
        return Opened(None, f"OpenVINO could not load the converted model: {_first_line(error)}")
    engine = _engine(graph, traits, memory)
    if (doubt := _doubt(engine, model, traits, folder)) is not None:
        return Opened(None, f"OpenVINO does not say what this model says; {doubt}.")
    engine.shared_cost = RunningCost(step_cost(engine, key))
    return Opened(engine, f"OpenVINO {version()}, in {graph.precision}, with trees of drafts.")


def obstacle_of(model: PreTrainedModel) -> str | None:
    """Why this model cannot be run by OpenVINO on this machine, before anything is converted; None where it may be."""
    if not is_installed():
        return "OpenVINO is not installed: pip install 'antiphon[openvino]'."
    if platform.machine() not in MACHINES:
        return f"OpenVINO's paged attention is for x86 CPUs, and this machine is {platform.machine()}."
    if model.device.type != "cpu":
        return f"The model is on {model.device}, and this engine runs on CPUs."
    precision = PRECISIONS.get(_name(model.dtype))
    if precision is None or not computes_in(precision):
        return f"This CPU does not compute in {_name(model.dtype)} under OpenVINO."
    if getattr(model, "is_quantized", False):
        return "The model is quantized in a way of its own, which torch runs."
    return None


def is_faster(engine: OpenVINOEngine, model: PreTrainedModel) -> bool:
    """Whether the engine's measured forwards, with a draft and without, take less time than torch's."""
    mine, its = step_cost(engine, fingerprint(model)), engine_of(model).step_cost()
    ratio = 1.0
    for rows in ROWS:
        ratio *= mine.curve(CONTEXT, rows)[-1] / its.curve(CONTEXT, rows)[-1]
    return bool(ratio < 1.0)


def _engine(graph: PagedGraph, traits: Traits, memory: int | None) -> OpenVINOEngine:
    windows = [window for window in windows_of(traits) if window]
    return OpenVINOEngine(
        graph,
        memory=int(min(MOST, SHARE * psutil.virtual_memory().available)) if memory is None else memory,
        window=min(windows, default=None),
        positions=traits.positions,
    )


def _doubt(engine: OpenVINOEngine, model: PreTrainedModel, traits: Traits, folder: Path) -> str | None:
    """What does not agree, found once for each converted model, precision and CPU; None where all does."""
    known = folder / f"self-test-{engine.graph.precision}.json"
    key = {"cpu": str(core().get_property("CPU", "FULL_DEVICE_NAME")), "tried": TRIED}
    try:
        if json.loads(known.read_text(encoding="utf-8")) == key:
            return None
    except (OSError, ValueError):
        pass
    wrong = [each for each in findings(engine, model, windows_of(traits)) if not each.agrees]
    if wrong:
        return str(wrong[0])
    if folder.is_dir():
        write(known, json.dumps(key).encode())
    return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
