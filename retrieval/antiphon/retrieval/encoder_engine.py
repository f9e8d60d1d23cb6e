"""Which engine runs an encoder: torch, or OpenVINO where it says the same. Knows the texts it compares by alone."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from antiphon.retrieval.device import precision
from antiphon.retrieval.durable import replace_file
from antiphon.retrieval.vectors import Vectors

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from antiphon.retrieval.encoder_graph import GraphEncoder

Engine = Literal["auto", "torch", "openvino"]
"""What runs an encoder: ``auto`` is OpenVINO where it is installed and agrees with torch, and torch elsewhere."""

ENGINES = ("auto", "torch", "openvino")

CLOSE = 1e-4
"""How far a vector may be from torch's in float32, in cosine, or as far as torch's own in the precision at hand is."""

PROBES = (
    "The harbour office opens at nine, except on public holidays.",
    "def mean(values): return sum(values) / len(values)",
    "1. Water boils at 100 °C at sea level; on a mountain of 3,000 metres it boils at about 90 °C. " * 4,
    "why?",
)
"""Texts by which engines are compared: prose, code, figures; long and short, so that some are padded."""


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The engine that was taken, ``torch`` or ``openvino``, and in a sentence why."""

    name: str
    reason: str


def choose_engine(
    wanted: Engine,
    model: PreTrainedModel,
    output: str,
    *,
    key: str,
    device: str,
    dtype: torch.dtype,
    vectors: Callable[[Any], Vectors],
) -> tuple[Any, EngineChoice]:
    """What computes the ``output`` of an encoder from now on: the model itself, or its graph; and why.

    ``vectors`` gives what is made of `PROBES` with one or the other, one line for each; they are compared line by line
    with those in float32. A graph whose vectors are further away than `CLOSE`, and than torch's own, is never taken.
    The comparison is made once for each graph and kept beside it.

    Raises:
        ValueError: ``wanted`` is no engine, or it is "openvino", which does not do here.
    """
    if wanted in ENGINES and wanted != "torch":
        graph, reason = _agreeing_graph(model, output, key, device, dtype, vectors)
        return (model, refused_choice(wanted, reason)) if graph is None else (graph, EngineChoice("openvino", reason))
    return model, refused_choice(wanted, "")


def choose_transformers_engine(
    wanted: Engine, transformer: Any, output: str, *, key: str, device: str, vectors: Callable[[], Vectors]
) -> EngineChoice:
    """The same for the transformer of a model of sentence-transformers, which asks its ``model`` for the ``output``.

    ``vectors`` gives what the whole makes of `PROBES` with the model that its transformer has at the time.
    """

    def with_model(candidate: Any) -> Vectors:
        transformer.model = candidate
        return vectors()

    transformer.model, choice = choose_engine(
        wanted, transformer.model, output, key=key, device=device, dtype=precision(device), vectors=with_model
    )
    return choice


def refused_choice(wanted: Engine, reason: str) -> EngineChoice:
    """The choice of torch where OpenVINO does not do, for this ``reason``, or was not wanted.

    Raises:
        ValueError: ``wanted`` is no engine, or nothing but "openvino" would do.
    """
    if wanted not in ENGINES:
        raise ValueError(f"engine is {wanted!r}; choose from {', '.join(ENGINES)}.")
    if wanted == "openvino":
        raise ValueError(f"OpenVINO cannot run this encoder: {reason}. Choose the engine auto, or torch.")
    return EngineChoice("torch", f"OpenVINO was not taken: {reason}" if wanted == "auto" else "it was asked for")


def _agreeing_graph(
    model: PreTrainedModel, output: str, key: str, device: str, dtype: torch.dtype, vectors: Callable[[Any], Vectors]
) -> tuple[Any, str]:
    """The model's graph, or None; and why."""
    from antiphon.retrieval.encoder_graph import GraphEncoder, obstacle_of

    if (obstacle := obstacle_of(device, dtype)) is not None:
        return None, obstacle
    try:
        graph = GraphEncoder(model, output, key=key, dtype=dtype)
        found = _kept(graph.verdict) or _compared(model, graph, vectors)
    except Exception as error:  # noqa: BLE001  # whatever cannot be converted stays on torch, and says why
        first = str(error).strip().partition("\n")[0]
        return None, f"the model cannot be converted ({type(error).__name__}: {first[:200]})"
    said = f"its vectors are {found.graph:.1e} from torch's in float32, in cosine"
    if not found.graph <= max(CLOSE, found.torch):
        return None, f"{said}, and {max(CLOSE, found.torch):.1e} is allowed"
    return graph, said


@dataclass(frozen=True, slots=True)
class _Distances:
    """How far the graph's vectors are from torch's in float32, and torch's own in the precision at hand."""

    graph: float
    torch: float


def _compared(model: PreTrainedModel, graph: GraphEncoder, vectors: Callable[[Any], Vectors]) -> _Distances:
    """What a comparison says; written down for the next time where that can be done."""
    exact = vectors(copy.deepcopy(model).float())
    found = _Distances(graph=apart(exact, vectors(graph)), torch=apart(exact, vectors(model)))
    with suppress(OSError):
        replace_file(graph.verdict, json.dumps(asdict(found)).encode())
    return found


def _kept(verdict: Path) -> _Distances | None:
    """What a comparison said before; None where there was none, or its file is damaged."""
    try:
        return _Distances(**{name: float(each) for name, each in json.loads(verdict.read_bytes()).items()})
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def apart(one: Vectors, other: Vectors) -> float:
    """One minus the cosine of each line with its counterpart: the largest."""
    one, other = (np.asarray(each, np.float64) for each in (one, other))  # type: ignore[assignment]
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return float((1 - (one * other).sum(axis=1) / lengths).max())
