"""Convert an encoder of transformers to an OpenVINO graph, and run the graph instead."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput

from antiphon.retrieval.encoder_runtime.graph import MULTIPLE, load_or_convert

if TYPE_CHECKING:
    import openvino
    from transformers import PreTrainedModel

OUTPUTS: Mapping[str, Callable[..., Any]] = {
    "last_hidden_state": BaseModelOutput,
    "logits": SequenceClassifierOutput,
}
"""For each output that can be requested from an encoder, its class in transformers."""


class OpenVINOEncoder(nn.Module):
    """A drop-in replacement for an encoder of transformers, run by OpenVINO. Thread-safe.

    Args:
        output: The requested output, a key of `OUTPUTS`.
        folder: Folder of the graph in the cache.
        precision: "float32" or "bfloat16".

    Raises:
        RuntimeError: OpenVINO cannot convert or compile the model.
    """

    def __init__(self, model: PreTrainedModel, output: str, *, folder: Path, precision: str) -> None:
        super().__init__()
        self.config = model.config
        self.device = torch.device("cpu")
        self._output = output
        self.graph = load_or_convert(folder, precision, partial(convert, model, output))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **others: Any) -> Any:
        """Return the output in float32.

        Args:
            input_ids: Of shape (texts, tokens).
            attention_mask: Of shape (texts, tokens).
            **others: Further tensors of the model, such as ``token_type_ids``.
        """
        given = {"input_ids": input_ids, "attention_mask": attention_mask, **others}
        arrays = {name: tensor.numpy() for name, tensor in given.items() if isinstance(tensor, Tensor)}
        return OUTPUTS[self._output](**{self._output: torch.from_numpy(self.graph.run(arrays))})


class _Traced(nn.Module):
    """Wraps the model as a function of tensors only, so that torch can trace it."""

    def __init__(self, model: nn.Module, output: str, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model = model
        self._output = output
        self._names = names

    def forward(self, *tensors: Tensor) -> Tensor:
        given = dict(zip(self._names, tensors, strict=True))
        found: Tensor = self.model(**given, return_dict=True)[self._output]
        return found


@torch.no_grad()
def convert(model: PreTrainedModel, output: str) -> openvino.Model:
    """Trace the model in float32, and convert the trace to an OpenVINO graph."""
    import openvino
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    taken = inspect.signature(model.forward).parameters
    names = tuple(name for name in ("input_ids", "attention_mask", "token_type_ids") if name in taken)
    ids = torch.ones((2, 2 * MULTIPLE), dtype=torch.long)
    mask = ids.tril(-MULTIPLE // 2).flip(1).clamp(max=1)
    mask[:, 0] = 1  # different lengths, so that the trace does not treat the mask as a constant
    example = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the comparison with torch finds actual errors
        copied: Any = copy.deepcopy(model).float().eval()
        copied.loss_type = "ForMaskedLM"  # tracing reads all properties, and that of the loss would print a warning
        traced = torch.jit.trace(  # type: ignore[no-untyped-call]
            _Traced(copied, output, names), tuple(example[name] for name in names), check_trace=False, strict=False
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
