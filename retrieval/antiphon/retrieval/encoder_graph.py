"""Encoders as OpenVINO graphs: a model of transformers is converted once, and its graph kept in the user's cache.

Knows token ids, masks and what comes out for them; neither texts nor vectors.
"""

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

from antiphon.retrieval.generation import IndexCorrupt, IndexMismatch, read_generation, write_generation

if TYPE_CHECKING:
    import openvino
    from transformers import PreTrainedModel

OUTPUTS: Mapping[str, Callable[..., Any]] = {
    "last_hidden_state": BaseModelOutput,
    "logits": SequenceClassifierOutput,
}
"""What can be asked of an encoder, and the kind of output of transformers that it comes in."""

MACHINES = ("x86_64", "AMD64")
"""Where the graph is known to be faster."""

FORMAT = 1
"""Raised whenever models come to be converted otherwise."""

GRAPH, WEIGHTS = "graph.xml", "graph.bin"
PRECISIONS = {torch.float32: "f32", torch.bfloat16: "bf16"}
MULTIPLE = 8
"""Rows are padded to multiples of so many tokens: every new shape has to be prepared for once."""


def obstacle_of(device: str, dtype: torch.dtype) -> str | None:
    """Why no encoder can be run by OpenVINO here; None where it can be tried."""
    if device.partition(":")[0] != "cpu":
        return f"it is for CPUs, and the model runs on {device}"
    if platform.machine() not in MACHINES:
        return f"it is for x86 CPUs, and this one is {platform.machine()}"
    if find_spec("openvino") is None:
        return "it is not installed: pip install 'antiphon[openvino]'"
    return None if dtype in PRECISIONS else f"it does not compute in {str(dtype).removeprefix('torch.')}"


class GraphEncoder(nn.Module):
    """Stands where a model of transformers stood: takes the same tensors and gives its ``output`` by the same name.

    ``key`` names the weights. Ids and masks have shape (texts, tokens). Several threads may call it, one after the
    other computes, with as many threads as torch had when it was made.

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
        core, folder = _core(), graph_folder(model, output, key)
        compiled = core.compile_model(_stored(model, output, folder), "CPU", options)
        described = f"{core.get_property('CPU', 'FULL_DEVICE_NAME')} {PRECISIONS[dtype]}"
        self.verdict = folder.with_suffix(f".{hashlib.sha256(described.encode()).hexdigest()[:8]}.json")
        """The file that says, for this CPU and precision, how its output compares with torch's."""
        self._request: Any = compiled.create_infer_request()
        self._lock = Lock()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **others: Any) -> Any:
        """The output for all tokens of the texts, in float32."""
        import openvino

        tokens = input_ids.shape[1]
        given = {"input_ids": input_ids, "attention_mask": attention_mask, **others}
        tensors = [given.get(name, torch.zeros_like(input_ids)) for name in self._inputs]
        padded = [nn.functional.pad(each, (0, -tokens % MULTIPLE)).contiguous().numpy() for each in tensors]
        with self._lock:
            for place, each in enumerate(padded):
                self._request.set_input_tensor(place, openvino.Tensor(each))
            self._request.start_async()  # its `infer` keeps silent about what a kernel refuses
            self._request.wait()
            found = torch.from_numpy(np.array(self._request.get_output_tensor(0).data, np.float32))
        return OUTPUTS[self._output](**{self._output: found[:, :tokens] if found.dim() == 3 else found})


class _Traced(nn.Module):
    """The model as a function of tensors alone, which is what can be traced."""

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
    """The tensors of texts that the model takes, in the order of the graph's."""
    taken = inspect.signature(model.forward).parameters
    return tuple(name for name in ("input_ids", "attention_mask", "token_type_ids") if name in taken)


@torch.no_grad()
def _converted(model: PreTrainedModel, output: str) -> openvino.Model:
    """Trace the model in float32 and translate the trace."""
    import openvino
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    names = _inputs(model)
    ids = torch.ones((2, 2 * MULTIPLE), dtype=torch.long)
    mask = ids.tril(-MULTIPLE // 2).flip(1).clamp(max=1)
    mask[:, 0] = 1  # texts of different lengths, so that the mask is no constant of the trace
    example = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the tracer warns of would show in the comparison with torch
        traced_model = _Traced(copy.deepcopy(model).float().eval(), output, names)
        traced = torch.jit.trace(  # type: ignore[no-untyped-call]
            traced_model, tuple(example[name] for name in names), check_trace=False, strict=False
        )
        frontend = FrontEndManager().load_by_framework("pytorch")
        decoder = TorchScriptPythonDecoder(traced)  # has to live until all is converted
        graph: openvino.Model = frontend.convert(frontend.load(decoder))
    for given, name in zip(graph.inputs, names, strict=True):
        given.get_tensor().set_names({name})
        given.get_node().set_partial_shape(openvino.PartialShape([-1, -1]))
        given.get_node().set_element_type(openvino.Type.i64)
    graph.validate_nodes_and_infer_types()
    return graph


def _stored(model: PreTrainedModel, output: str, folder: Path) -> openvino.Model:
    """The graph that is kept for these weights; made and kept first where there is none, or a damaged one."""
    with suppress(OSError, IndexCorrupt, IndexMismatch, RuntimeError):
        return _core().read_model(read_generation(folder).folder / GRAPH)
    graph = _converted(model, output)
    with suppress(OSError, ValueError):  # what cannot be kept is converted again by the next process
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_generation(folder, lambda beside: _save(graph, beside), {"model": type(model).__name__, "output": output})
    return graph


def graph_folder(model: PreTrainedModel, output: str, key: str) -> Path:
    """Where the graph of these weights is kept; other settings and versions of what makes it have other folders."""
    settings = {name: each for name, each in model.config.to_dict().items() if not name.startswith("_")}
    versions = [version(name) for name in ("openvino", "torch", "transformers")]
    described = json.dumps([key, output, type(model).__name__, settings, versions, FORMAT], sort_keys=True, default=str)
    digest = hashlib.sha256(described.encode()).hexdigest()
    return Path(user_cache_dir("antiphon")) / "encoders" / digest[:32]


def _save(graph: openvino.Model, folder: Path) -> None:
    """Both files of a graph; of a full disk OpenVINO itself says nothing."""
    import openvino

    try:
        openvino.save_model(graph, folder / GRAPH, compress_to_fp16=False)
    except RuntimeError as error:
        raise OSError(f"The graph cannot be written to {folder}: {error}") from error
    constants = (each for each in graph.get_ops() if each.get_type_name() == "Constant")
    if (folder / WEIGHTS).stat().st_size < max(int(each.get_byte_size()) for each in constants):
        raise OSError(f"The graph in {folder} is cut short; is the disk full?")


def _core() -> openvino.Core:
    import openvino

    return openvino.Core()
