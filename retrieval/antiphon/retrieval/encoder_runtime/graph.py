"""Run the OpenVINO graph of an encoder, without importing torch and transformers, which would take seconds."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
from numpy.typing import NDArray

from antiphon.accel.cache_folder import cache_folder
from antiphon.accel.files import is_intact, verified_folder

if TYPE_CHECKING:
    import openvino

MACHINES = ("x86_64", "AMD64")
"""The machines on which the graph is known to be faster than torch."""

FORMAT = 2
"""The version of the conversion. Raise it when the conversion changes: older graphs are then ignored."""

GRAPH = "graph.xml"
PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}
MULTIPLE = 8
"""Texts are padded to a multiple of this many tokens, because OpenVINO has to prepare every new shape."""


def openvino_obstacle(device: str, precision: str) -> str | None:
    """Return why OpenVINO cannot run an encoder here; None if nothing is known to prevent it."""
    if device.partition(":")[0] != "cpu":
        return f"it is for CPUs, and the model runs on {device}"
    if platform.machine() not in MACHINES:
        return f"it is for x86 CPUs, and this one is {platform.machine()}"
    if find_spec("openvino") is None:
        return "it is not installed: pip install openvino"
    return None if precision in PRECISIONS else f"it does not compute in {precision}"


class EncoderGraph:
    """A converted encoder, read from the cache. Thread-safe; it computes one call at a time.

    Args:
        folder: Folder of the graph, see `graph_folder`.
        precision: A key of `PRECISIONS`.

    Attributes:
        comparison_file: The file with the result of the comparison with torch, for this CPU and precision.

    Raises:
        RuntimeError: OpenVINO cannot read or compile the graph.
    """

    def __init__(self, folder: Path, precision: str, graph: openvino.Model | None = None) -> None:
        import openvino

        core = openvino.Core()
        options = {
            "INFERENCE_PRECISION_HINT": PRECISIONS[precision],
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": num_threads(),
        }
        compiled = core.compile_model(folder / GRAPH if graph is None else graph, "CPU", options)
        self.comparison_file = comparison_file(folder, precision, core.get_property("CPU", "FULL_DEVICE_NAME"))
        self._names = [given.get_any_name() for given in compiled.inputs]
        self._request: Any = compiled.create_infer_request()
        self._lock = Lock()

    def run(self, arrays: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        """Return the output in float32: of shape (texts, tokens, dim), or (texts, classes).

        Args:
            arrays: Inputs by name, each of shape (texts, tokens); missing inputs are zeros.
        """
        import openvino

        ids = arrays["input_ids"]
        padding = ((0, 0), (0, -ids.shape[1] % MULTIPLE))
        padded = [np.pad(arrays.get(name, np.zeros_like(ids)), padding) for name in self._names]
        with self._lock:
            for place, array in enumerate(padded):
                self._request.set_input_tensor(place, openvino.Tensor(array))
            self._request.start_async()  # unlike `infer`, this reports errors of a kernel
            self._request.wait()
            found = np.array(self._request.get_output_tensor(0).data, np.float32)
        return found[:, : ids.shape[1]] if found.ndim == 3 else found


def load_or_convert(folder: Path, precision: str, convert: Callable[[], openvino.Model]) -> EncoderGraph:
    """Return the graph in a folder. If it is missing or damaged, convert the model and write the graph.

    If the cache is not writable, the converted graph is used without being saved.
    """
    if is_intact(folder):
        with suppress(RuntimeError):
            return EncoderGraph(folder, precision)
    graph = convert()
    with suppress(OSError, RuntimeError):  # unlike ``graph``, the saved graph does not keep torch's weights
        return EncoderGraph(verified_folder(folder, lambda target: _save(graph, target)), precision)
    return EncoderGraph(folder, precision, graph)


def graph_folder(*identity: str) -> Path:
    """Return the cache folder of a graph.

    Args:
        *identity: Texts that identify weights, configuration and output; library versions are added.
    """
    versions = [version(name) for name in ("openvino", "torch", "transformers")]
    digest = hashlib.sha256(json.dumps([identity, versions, FORMAT]).encode()).hexdigest()
    return cache_folder() / "encoders" / digest[:32]


def comparison_file(folder: Path, precision: str, processor: str) -> Path:
    """Return the path of the saved comparison of a graph with torch on a processor."""
    described = hashlib.sha256(f"{processor} {PRECISIONS[precision]}".encode()).hexdigest()
    return folder.with_suffix(f".{described[:8]}.json")


def num_threads() -> int:
    """Return torch's number of threads; without torch, OMP_NUM_THREADS or the physical cores."""
    if "torch" in sys.modules:
        return int(sys.modules["torch"].get_num_threads())
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdigit() and int(given):
        return int(given)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(psutil.cpu_count(logical=False) or usable, usable)


def _save(graph: openvino.Model, folder: Path) -> None:
    """Save both files of a graph and check their sizes, because OpenVINO does not report a full disk."""
    import openvino

    try:
        openvino.save_model(graph, folder / GRAPH, compress_to_fp16=False)
    except RuntimeError as error:
        raise OSError(f"The graph cannot be written to {folder}: {error}") from error
    constants = (node for node in graph.get_ops() if node.get_type_name() == "Constant")
    if (folder / GRAPH).with_suffix(".bin").stat().st_size < max(int(node.get_byte_size()) for node in constants):
        raise OSError(f"The graph in {folder} is truncated; is the disk full?")
