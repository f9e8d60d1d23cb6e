"""Run encoders with OpenVINO: a model of transformers is converted once, and its graph is cached on disk."""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import platform
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from platformdirs import user_cache_dir
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput

from antiphon.retrieval.errors import IndexCorrupt, IndexMismatch
from antiphon.retrieval.index_folder.generations import read_generation, write_generation
from antiphon.retrieval.index_folder.write_lock import lock_for_writing

if TYPE_CHECKING:
    import openvino
    from transformers import PreTrainedModel

OUTPUTS: Mapping[str, Callable[..., Any]] = {
    "last_hidden_state": BaseModelOutput,
    "logits": SequenceClassifierOutput,
}
"""The outputs that can be requested from an encoder, with the output class of transformers for each."""

MACHINES = ("x86_64", "AMD64")
"""The machines on which the graph is known to be faster."""

FORMAT = 1
"""The version of the conversion. Raise it when the conversion changes: older graphs are then ignored."""

GRAPH, WEIGHTS = "graph.xml", "graph.bin"
PRECISIONS = {torch.float32: "f32", torch.bfloat16: "bf16"}
MULTIPLE = 8
"""Texts are padded to a multiple of this many tokens, because OpenVINO has to prepare every new shape."""


def openvino_obstacle(device: str, dtype: torch.dtype) -> str | None:
    """Return why OpenVINO cannot run an encoder here, or None if it can be tried."""
    if device.partition(":")[0] != "cpu":
        return f"it is for CPUs, and the model runs on {device}"
    if platform.machine() not in MACHINES:
        return f"it is for x86 CPUs, and this one is {platform.machine()}"
    if find_spec("openvino") is None:
        return "it is not installed: pip install openvino"
    return None if dtype in PRECISIONS else f"it does not compute in {str(dtype).removeprefix('torch.')}"


class OpenVINOEncoder(nn.Module):
    """A drop-in replacement for an encoder of transformers, run by OpenVINO. Thread-safe.

    It uses as many threads as torch has when it is created, and computes one call at a time.

    Attributes:
        comparison_file: The file with the result of the comparison with torch, for this CPU and precision.

    Raises:
        RuntimeError: OpenVINO cannot convert or compile the model.
    """

    def __init__(self, model: PreTrainedModel, output: str, *, key: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = model.config
        self.device = torch.device("cpu")
        self._output = output
        self._inputs = _inputs(model)
        options = {
            "INFERENCE_PRECISION_HINT": PRECISIONS[dtype],
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        }
        core, folder = _core(), cache_folder_of(model, output, key)
        compiled = core.compile_model(_load_or_convert(model, output, folder), "CPU", options)
        described = f"{core.get_property('CPU', 'FULL_DEVICE_NAME')} {PRECISIONS[dtype]}"
        self.comparison_file = folder.with_suffix(f".{hashlib.sha256(described.encode()).hexdigest()[:8]}.json")
        self._request: Any = compiled.create_infer_request()
        self._lock = Lock()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **others: Any) -> Any:
        """Return the output in float32.

        Args:
            input_ids: Of shape (texts, tokens).
            attention_mask: Of shape (texts, tokens).
            **others: Further tensors of the model, such as ``token_type_ids``.
        """
        import openvino

        tokens = input_ids.shape[1]
        given = {"input_ids": input_ids, "attention_mask": attention_mask, **others}
        tensors = [given.get(name, torch.zeros_like(input_ids)) for name in self._inputs]
        padded = [nn.functional.pad(each, (0, -tokens % MULTIPLE)).contiguous().numpy() for each in tensors]
        with self._lock:
            for place, each in enumerate(padded):
                self._request.set_input_tensor(place, openvino.Tensor(each))
            self._request.start_async()  # unlike `infer`, this reports errors of a kernel
            self._request.wait()
            found = torch.from_numpy(np.array(self._request.get_output_tensor(0).data, np.float32))
        return OUTPUTS[self._output](**{self._output: found[:, :tokens] if found.dim() == 3 else found})


class _Traced(nn.Module):
    """The model as a function of tensors only, which torch can trace."""

    def __init__(self, model: nn.Module, output: str, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model = model
        self._output = output
        self._names = names

    def forward(self, *tensors: Tensor) -> Tensor:
        given = dict(zip(self._names, tensors, strict=True))
        found: Tensor = self.model(**given, return_dict=True)[self._output]
        return found


def _inputs(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the model's inputs, in the order of the graph."""
    taken = inspect.signature(model.forward).parameters
    return tuple(name for name in ("input_ids", "attention_mask", "token_type_ids") if name in taken)


@torch.no_grad()
def _convert(model: PreTrainedModel, output: str) -> openvino.Model:
    """Trace the model in float32, and convert the trace to an OpenVINO graph."""
    import openvino
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    names = _inputs(model)
    ids = torch.ones((2, 2 * MULTIPLE), dtype=torch.long)
    mask = ids.tril(-MULTIPLE // 2).flip(1).clamp(max=1)
    mask[:, 0] = 1  # different lengths, so that the trace does not treat the mask as a constant
    example = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the comparison with torch finds actual errors
        traced_model = _Traced(copy.deepcopy(model).float().eval(), output, names)
        traced = torch.jit.trace(  # type: ignore[no-untyped-call]
            traced_model, tuple(example[name] for name in names), check_trace=False, strict=False
        )
        frontend = FrontEndManager().load_by_framework("pytorch")
        decoder = TorchScriptPythonDecoder(traced)  # kept in a variable until the conversion is complete
        graph: openvino.Model = frontend.convert(frontend.load(decoder))
    for given, name in zip(graph.inputs, names, strict=True):
        given.get_tensor().set_names({name})
        given.get_node().set_partial_shape(openvino.PartialShape([-1, -1]))
        given.get_node().set_element_type(openvino.Type.i64)
    graph.validate_nodes_and_infer_types()
    return graph


def _load_or_convert(model: PreTrainedModel, output: str, folder: Path) -> openvino.Model:
    """Return the cached graph of these weights; if there is none or it is damaged, convert the model and cache it."""
    with suppress(OSError, IndexCorrupt, IndexMismatch, RuntimeError):
        return _core().read_model(read_generation(folder).folder / GRAPH)
    graph = _convert(model, output)
    with suppress(OSError, ValueError):  # if the cache is not writable, the next process converts the model again
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with lock_for_writing(folder):
            facts = {"model": type(model).__name__, "output": output}
            write_generation(folder, lambda target: _save(graph, target), facts)
    return graph


def cache_folder_of(model: PreTrainedModel, output: str, key: str) -> Path:
    """Return the cache folder of a graph, which depends on weights, configuration and library versions.

    Args:
        key: Identifies the weights.
    """
    settings = {name: each for name, each in model.config.to_dict().items() if not name.startswith("_")}
    versions = [version(name) for name in ("openvino", "torch", "transformers")]
    described = json.dumps([key, output, type(model).__name__, settings, versions, FORMAT], sort_keys=True, default=str)
    digest = hashlib.sha256(described.encode()).hexdigest()
    return Path(user_cache_dir("antiphon")) / "encoders" / digest[:32]


def _save(graph: openvino.Model, folder: Path) -> None:
    """Save both files of a graph, and check their size, because OpenVINO does not report a full disk."""
    import openvino

    try:
        openvino.save_model(graph, folder / GRAPH, compress_to_fp16=False)
    except RuntimeError as error:
        raise OSError(f"The graph cannot be written to {folder}: {error}") from error
    constants = (each for each in graph.get_ops() if each.get_type_name() == "Constant")
    if (folder / WEIGHTS).stat().st_size < max(int(each.get_byte_size()) for each in constants):
        raise OSError(f"The graph in {folder} is truncated; is the disk full?")


def _core() -> openvino.Core:
    import openvino

    return openvino.Core()
