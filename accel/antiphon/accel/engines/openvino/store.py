"""Converted models in the user's cache: one folder per model, written atomically.

A folder contains the graph without large weights (up to a few megabytes), or with compressed weights. A damaged
folder is written again. If the cache is not writable, the model is converted for this process only.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version as version_of
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from antiphon.accel.cache_folder import cache_folder
from antiphon.accel.engines.openvino.runtime import core, cpu_name, version
from antiphon.accel.engines.openvino.weights import mark_decompression
from antiphon.accel.files import is_intact, verified_folder, write_cache_file

if TYPE_CHECKING:
    import openvino
    from torch import Tensor
    from transformers import PreTrainedModel

FORMAT = 5
"""Version of the conversion. Raise it when the conversion changes: older folders are then not used any more."""

GRAPH, WEIGHTS = "graph.xml", "graph.bin"
"""The files of a folder, besides its manifest."""

SAMPLE = 16
"""Number of values per tensor in a fingerprint, if the model's files identify the other values."""

Convert = Callable[[], "openvino.Model"]
"""Converts the model."""


def fingerprint(model: PreTrainedModel, weights: str = "") -> str:
    """Return 32 characters that identify a converted model: its weights, its configuration and library versions.

    Weights that `load_pretrained` has read from files are identified by these files, other weights by their values.

    Args:
        weights: "int8" or "int4" for compressed weights, or empty.
    """
    import torch
    import transformers

    from antiphon.accel.engines.torch.loading import checkpoint_of

    total = hashlib.sha256()
    settings = {name: each for name, each in model.config.to_dict().items() if not name.startswith("_")}
    libraries = {"openvino": version(), "torch": torch.__version__, "transformers": transformers.__version__}
    versions = libraries | {"format": str(FORMAT)}
    if weights:
        versions |= {"weights": weights, "nncf": version_of("nncf")}
    checkpoint = checkpoint_of(model)
    files = [] if checkpoint is None else [each.identity for each in checkpoint.files]
    facts = [type(model).__name__, settings, versions, files]
    total.update(json.dumps(facts, sort_keys=True, default=str).encode())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(_bytes(tensor if checkpoint is None else _sample(tensor)).tobytes())
    return total.hexdigest()[:32]


def folder_of(key: str) -> Path:
    """Return the folder of the converted model with this fingerprint."""
    return cache_folder() / "openvino" / key


def load_or_convert(folder: Path, convert: Convert) -> openvino.Model:
    """Return the graph in a folder, or convert the model and store the graph there.

    Several processes may convert the same model at once; see `verified_folder`.

    Raises:
        OSError: Neither the cache nor a temporary folder has space for the graph.
    """
    converted = cache(convert)
    with suppress(OSError):
        return _load(verified_folder(folder, lambda temporary: store_graph(temporary, converted())))
    with tempfile.TemporaryDirectory(prefix="antiphon-", ignore_cleanup_errors=True) as temporary:
        store_graph(Path(temporary), converted())
        return _load(Path(temporary))


def load_stored(folder: Path) -> openvino.Model | None:
    """Return the graph in a folder; None if it is missing or damaged."""
    with suppress(OSError, RuntimeError):
        return _load(folder) if is_intact(folder) else None
    return None


def store_graph(folder: Path, graph: openvino.Model) -> None:
    """Write the graph to a folder.

    Raises:
        OSError: The folder is not writable, or the disk is full.
    """
    import openvino

    try:
        openvino.save_model(graph, folder / GRAPH, compress_to_fp16=False)
    except RuntimeError as error:  # OpenVINO does not say that the disk is full
        raise OSError(f"The converted model cannot be written to {folder} ({error}); is the disk full?") from error
    _check(folder, graph)


def _check(folder: Path, graph: openvino.Model) -> None:
    """Read the graph back and compare the sizes of its constants, because a full disk can truncate the file."""
    try:
        again = _load(folder)
        sizes = [_constants(each) for each in (graph, again)]
    except RuntimeError as error:
        raise OSError(f"The converted model in {folder} is incomplete: {error}") from error
    if sizes[0] != sizes[1]:
        raise OSError(f"The converted model in {folder} is incomplete; is the disk full?")


def _constants(graph: openvino.Model) -> int:
    large = (each for each in graph.get_ops() if each.get_type_name() == "Constant")
    return sum(size for each in large if (size := int(each.get_byte_size())) > 4096)


def _load(folder: Path) -> openvino.Model:
    graph = core().read_model(folder / GRAPH)
    mark_decompression(graph)
    return graph


def _sample(tensor: Tensor) -> Tensor:
    """Return a few values of a tensor, to detect that it was changed after it was read from its file."""
    flat = tensor.detach().reshape(-1)
    return flat[:: max(len(flat) // SAMPLE, 1)]


def _bytes(weights: Tensor) -> NDArray[np.uint8]:
    import torch

    raw: NDArray[np.uint8] = weights.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return raw


TEST_VERSION = 8
"""Version of the self-test. Raise it when the self-test changes: older results are then ignored."""


@dataclass(frozen=True, slots=True)
class Compatibility:
    """Whether OpenVINO can run a model in one setting, and how fast.

    Attributes:
        failure: Why OpenVINO cannot run the model; empty if the self-test passed.
        speedup: Speed of OpenVINO's decoding steps as a multiple of torch's; None if not measured.
        comparisons: Number of comparisons; the speedup is their geometric mean.
    """

    failure: str = ""
    speedup: float | None = None
    comparisons: int = 0


def load_compatibility(fingerprint: str, setting: str) -> Compatibility | None:
    """Return the stored result for a model on this CPU, or None if there is none.

    Args:
        setting: Precision and number of threads, as in "f32-8".
    """
    try:
        found = json.loads(_path(fingerprint, setting).read_text(encoding="utf-8"))
        if (found["version"], found["cpu"]) != (TEST_VERSION, cpu_name()):
            return None
        failure, speedup, comparisons = found["failure"], found["speedup"], int(found.get("comparisons", 1))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    is_valid = isinstance(failure, str) and (speedup is None or isinstance(speedup, float))
    return Compatibility(failure, speedup, comparisons) if is_valid else None


def save_compatibility(fingerprint: str, setting: str, result: Compatibility) -> None:
    """Store a result for later processes; if the file cannot be written, they test again."""
    fields = {"version": TEST_VERSION, "cpu": cpu_name(), **asdict(result)}
    write_cache_file(_path(fingerprint, setting), json.dumps(fields).encode())


def _path(fingerprint: str, setting: str) -> Path:
    folder = folder_of(fingerprint)
    return folder.with_name(f"{folder.name}-{setting}.json")
