"""Choose the engine that runs an encoder: OpenVINO if its vectors agree with those of torch, else torch."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from antiphon.accel.files import write_cache_file
from antiphon.retrieval.encoder_runtime.device import pick_dtype
from antiphon.retrieval.vector_index.flat import Vectors

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from antiphon.retrieval.encoder_runtime.openvino_encoder import OpenVINOEncoder

Engine = Literal["auto", "torch", "openvino"]
"""What runs an encoder. ``auto`` is OpenVINO if it is installed and agrees with torch, else torch."""

ENGINES = ("auto", "torch", "openvino")

CLOSE = 1e-4
"""The allowed cosine distance from torch in float32, unless torch itself deviates more in the precision in use."""

COMPARISON_TEXTS = (
    "The harbour office opens at nine, except on public holidays.",
    "def mean(values): return sum(values) / len(values)",
    "1. Water boils at 100 °C at sea level; on a mountain of 3,000 metres it boils at about 90 °C. " * 4,
    "why?",
)
"""The texts on which engines are compared: prose, code and numbers of different lengths, so that some are padded."""


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The chosen engine, ``torch`` or ``openvino``, and the reason as a sentence."""

    name: str
    reason: str


def choose_encoder_engine(
    wanted: Engine,
    model: PreTrainedModel,
    output: str,
    *,
    key: str,
    device: str,
    dtype: torch.dtype,
    vectors: Callable[[Any], Vectors],
) -> tuple[Any, EngineChoice]:
    """Choose what computes an encoder's output: the model in torch, or its OpenVINO graph.

    The graph is chosen if its vectors for `COMPARISON_TEXTS` are close to those of torch in float32: within `CLOSE`, or
    at least as close as torch in the precision in use. The comparison is made once per graph, and its result is saved.

    Args:
        output: The name of its output, a key of `OUTPUTS`.
        vectors: A function that computes the vectors of `COMPARISON_TEXTS` with a model or graph; one row per text.

    Returns:
        The model or its graph, and the reason.

    Raises:
        ValueError: ``wanted`` is not an engine, or it is "openvino", which cannot run this model here.
    """
    if wanted in ENGINES and wanted != "torch":
        graph, reason = _agreeing_graph(model, output, key, device, dtype, vectors)
        return (model, torch_choice(wanted, reason)) if graph is None else (graph, EngineChoice("openvino", reason))
    return model, torch_choice(wanted, "")


def choose_module_engine(
    wanted: Engine, transformer: Any, output: str, *, key: str, device: str, vectors: Callable[[], Vectors]
) -> EngineChoice:
    """Choose the engine of a transformer module of sentence-transformers, and let the module use it.

    Args:
        transformer: The module; its attribute ``model`` is replaced if OpenVINO is chosen.
        output: The output that the module reads, a key of `OUTPUTS`.
        vectors: A function that computes the vectors of `COMPARISON_TEXTS` with the module's current model.

    Raises:
        ValueError: ``wanted`` is not an engine, or it is "openvino", which cannot run this model here.
    """

    def with_model(candidate: Any) -> Vectors:
        transformer.model = candidate
        return vectors()

    transformer.model, choice = choose_encoder_engine(
        wanted, transformer.model, output, key=key, device=device, dtype=pick_dtype(device), vectors=with_model
    )
    return choice


def torch_choice(wanted: Engine, reason: str) -> EngineChoice:
    """Choose torch, because OpenVINO cannot run the model or was not requested.

    Raises:
        ValueError: ``wanted`` is not an engine, or it is "openvino".
    """
    if wanted not in ENGINES:
        raise ValueError(f"engine is {wanted!r}; choose from {', '.join(ENGINES)}.")
    if wanted == "openvino":
        raise ValueError(f"OpenVINO cannot run this encoder: {reason}. Choose the engine auto, or torch.")
    return EngineChoice("torch", f"OpenVINO was not chosen: {reason}" if wanted == "auto" else "it was requested")


def _agreeing_graph(
    model: PreTrainedModel, output: str, key: str, device: str, dtype: torch.dtype, vectors: Callable[[Any], Vectors]
) -> tuple[Any, str]:
    """Return the model's graph and why it can be used, or None and why it cannot."""
    from antiphon.retrieval.encoder_runtime.openvino_encoder import OpenVINOEncoder, openvino_obstacle

    if (obstacle := openvino_obstacle(device, dtype)) is not None:
        return None, obstacle
    try:
        graph = OpenVINOEncoder(model, output, key=key, dtype=dtype)
        distances = _saved_distances(graph.comparison_file) or _compare(model, graph, vectors)
    except Exception as error:  # noqa: BLE001  # if the conversion fails for any reason, torch is used
        first = str(error).strip().partition("\n")[0]
        return None, f"the model cannot be converted ({type(error).__name__}: {first[:200]})"
    reason = f"its vectors are {distances.graph:.1e} from torch's in float32, in cosine"
    if not distances.graph <= max(CLOSE, distances.torch):
        return None, f"{reason}, and {max(CLOSE, distances.torch):.1e} is allowed"
    return graph, reason


@dataclass(frozen=True, slots=True)
class _Distances:
    """The largest cosine distances from torch in float32: of the graph's vectors, and of torch's in its own precision.

    The precision of torch here is the one that the encoder would run in.
    """

    graph: float
    torch: float


def _compare(model: PreTrainedModel, graph: OpenVINOEncoder, vectors: Callable[[Any], Vectors]) -> _Distances:
    """Measure the distances, and save them for the next process if possible."""
    exact = vectors(copy.deepcopy(model).float())
    distances = _Distances(
        graph=max_cosine_distance(exact, vectors(graph)), torch=max_cosine_distance(exact, vectors(model))
    )
    write_cache_file(graph.comparison_file, json.dumps(asdict(distances)).encode())
    return distances


def _saved_distances(path: Path) -> _Distances | None:
    """Return the result of an earlier comparison, or None if there is none or its file is damaged."""
    try:
        return _Distances(**{name: float(each) for name, each in json.loads(path.read_bytes()).items()})
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def max_cosine_distance(one: Vectors, other: Vectors) -> float:
    """Return the largest cosine distance between corresponding rows.

    Args:
        one: Of shape (n, dim).
        other: Of shape (n, dim).
    """
    one, other = (np.asarray(each, np.float64) for each in (one, other))  # type: ignore[assignment]
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return float((1 - (one * other).sum(axis=1) / lengths).max())
