"""Choose the engine of an encoder: OpenVINO if its vectors agree with torch's, else torch."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from antiphon.accel.files import is_intact, write_cache_file
from antiphon.retrieval.encoder_runtime.device import pick_precision
from antiphon.retrieval.encoder_runtime.graph import EncoderGraph, graph_folder, openvino_obstacle
from antiphon.retrieval.vector_index.flat import Vectors

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Engine = Literal["auto", "torch", "openvino"]
"""The engine of an encoder. ``auto``: OpenVINO if it is installed and agrees with torch."""

ENGINES = ("auto", "torch", "openvino")

CLOSE = 1e-4
"""The allowed cosine distance between vectors of the graph and vectors of torch in float32.

If torch's own vectors in the precision in use differ more from float32, that distance is allowed.
"""

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
    folder: Path,
    device: str,
    precision: str,
    vectors: Callable[[Any], Vectors],
) -> tuple[Any, EngineChoice]:
    """Choose the engine for an encoder: the torch model, or its OpenVINO graph.

    The graph is chosen if its vectors for `COMPARISON_TEXTS` are close to torch's in float32. They
    are close if they differ by at most `CLOSE`, or by no more than torch's own vectors in the
    precision in use differ from float32. The comparison is made once per graph and processor, and
    its result is saved.

    Args:
        output: The name of the encoder's output, a key of `OUTPUTS`.
        folder: Folder of the graph in the cache, see `graph_folder`.
        vectors: A function that computes the vectors of `COMPARISON_TEXTS` with a model or graph; one row per text.

    Returns:
        The model or its graph, and the choice with its reason.

    Raises:
        ValueError: ``wanted`` is not an engine, or it is "openvino" and OpenVINO cannot run this model here.
    """
    if wanted in ENGINES and wanted != "torch":
        graph, reason = _agreeing_graph(model, output, folder, device, precision, vectors)
        return (model, torch_choice(wanted, reason)) if graph is None else (graph, EngineChoice("openvino", reason))
    return model, torch_choice(wanted, "")


def choose_module_engine(
    wanted: Engine, transformer: Any, output: str, *, key: str, device: str, vectors: Callable[[], Vectors]
) -> EngineChoice:
    """Choose the engine for a sentence-transformers module, and make the module use it.

    Args:
        transformer: The module; its attribute ``model`` is replaced if OpenVINO is chosen.
        output: The output that the module reads, a key of `OUTPUTS`.
        vectors: A function that computes the vectors of `COMPARISON_TEXTS` with the module's current model.

    Raises:
        ValueError: ``wanted`` is not an engine, or it is "openvino" and OpenVINO cannot run this model here.
    """

    def with_model(candidate: Any) -> Vectors:
        transformer.model = candidate
        return vectors()

    model = transformer.model
    settings = {name: value for name, value in model.config.to_dict().items() if not name.startswith("_")}
    folder = graph_folder(key, output, type(model).__name__, json.dumps(settings, sort_keys=True, default=str))
    own: dict[str, Any] = {"device": device, "precision": pick_precision(device), "vectors": with_model}
    transformer.model, choice = choose_encoder_engine(wanted, model, output, folder=folder, **own)
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
    model: PreTrainedModel, output: str, folder: Path, device: str, precision: str, vectors: Callable[[Any], Vectors]
) -> tuple[Any, str]:
    """Return the model's graph and why the graph may be used; if it may not be used, return None and why not."""
    if (obstacle := openvino_obstacle(device, precision)) is not None:
        return None, obstacle
    from antiphon.retrieval.encoder_runtime.openvino_encoder import OpenVINOEncoder

    try:
        encoder = OpenVINOEncoder(model, output, folder=folder, precision=precision)
        agrees, reason = saved_agreement(encoder.graph.comparison_file) or _compare(model, encoder, vectors)
    except Exception as error:  # noqa: BLE001  # if the conversion fails for any reason, torch is used
        first = str(error).strip().partition("\n")[0]
        return None, f"the model cannot be converted ({type(error).__name__}: {first[:200]})"
    return encoder if agrees else None, reason


def stored_graph(folder: Path, device: str, precision: str) -> tuple[EncoderGraph, EngineChoice] | None:
    """Return a cached graph that agreed with torch in an earlier comparison; None if there is none."""
    if openvino_obstacle(device, precision) is not None or not is_intact(folder):
        return None
    try:
        graph = EncoderGraph(folder, precision)
    except RuntimeError:  # it is converted again
        return None
    agrees, reason = saved_agreement(graph.comparison_file) or (False, "")
    return (graph, EngineChoice("openvino", reason)) if agrees else None


def saved_agreement(path: Path) -> tuple[bool, str] | None:
    """Read the result of an earlier comparison: whether the graph may be used, and the reason.

    Returns None if there is no comparison or its file is damaged.
    """
    try:
        return _agreement(**{name: float(distance) for name, distance in json.loads(path.read_bytes()).items()})
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _agreement(graph: float, torch: float) -> tuple[bool, str]:
    """Decide from the distances whether the graph may be used; return the decision and the reason.

    Args:
        graph: The largest cosine distance of the graph's vectors from torch's vectors in float32.
        torch: The largest cosine distance of torch's vectors in the precision in use from torch's
            vectors in float32.
    """
    reason = f"its vectors are {graph:.1e} from torch's in float32, in cosine"
    allowed = max(CLOSE, torch)
    return (True, reason) if graph <= allowed else (False, f"{reason}, and {allowed:.1e} is allowed")


def _compare(model: PreTrainedModel, encoder: Any, vectors: Callable[[Any], Vectors]) -> tuple[bool, str]:
    """Compare the vectors of graph and model; save the result for later processes if possible."""
    exact = vectors(copy.deepcopy(model).float())
    distances = {
        "graph": max_cosine_distance(exact, vectors(encoder)),
        "torch": max_cosine_distance(exact, vectors(model)),
    }
    write_cache_file(encoder.graph.comparison_file, json.dumps(distances).encode())
    return _agreement(**distances)


def max_cosine_distance(one: Vectors, other: Vectors) -> float:
    """Return the largest cosine distance between corresponding rows.

    Args:
        one: Of shape (n, dim).
        other: Of shape (n, dim).
    """
    one, other = (np.asarray(each, np.float64) for each in (one, other))  # type: ignore[assignment]
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return float((1 - (one * other).sum(axis=1) / lengths).max())
