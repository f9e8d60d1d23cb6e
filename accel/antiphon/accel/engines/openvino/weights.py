"""The large weights of a converted model: constants of the graph that share the memory of the model or its checkpoint.

A stored graph has an input in place of each large weight. Before compilation every input is replaced by a constant, so
that no weight is copied or stored twice. Weights in float32 that are exact in 16 bits become 16-bit constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

if TYPE_CHECKING:
    import openvino

INPUT_PREFIX = "weight:"
"""Start of the names of inputs that stand for large weights; the name of the parameter follows."""

SMALL = 4096
"""Tensors with fewer elements, and vectors, are stored in the graph in float32."""

DECOMPRESSION = "decompression_0"
"""Mark of a conversion that OpenVINO leaves in the graph. Without it, the weights are unpacked to float32 in memory."""

SAMPLE = 4096
"""Number of values by which a weight is recognised in a checkpoint file."""

Owners = list[NDArray[Any]]
"""Arrays that own the memory of constants. OpenVINO does not keep them alive."""


def large_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the parameters that the graph does not contain, by name; a tied one once."""
    return {name: each for name, each in model.named_parameters() if each.dim() > 1 and each.numel() >= SMALL}


def attach_weights(graph: openvino.Model, model: PreTrainedModel, files: Sequence[Path] = ()) -> Owners:
    """Replace the inputs that stand for weights by constants that share the memory of the model or of its files.

    Args:
        graph: A graph of `conversion.paged_model`; a graph with its own weights is left as it is.
        model: The model that was converted.
        files: Its checkpoint (safetensors), for models that were loaded in float32 from 16-bit weights.

    Returns:
        The owners of the memory, which the caller keeps as long as the graph or its compiled form is in use.
    """
    inputs = [port.get_node() for port in graph.inputs if port.get_any_name().startswith(INPUT_PREFIX)]
    if not inputs:
        return []
    parameters = large_weights(model)
    stored = _StoredWeights(files)
    owners: Owners = []
    for node in inputs:
        name = node.get_friendly_name().removeprefix(INPUT_PREFIX)
        weight = parameters[name].detach().contiguous()
        if weight.dtype == torch.float32:
            weight = stored.find(weight) if files else _as_half(weight)
        output = _constant(weight, name, owners)
        for reader in list(node.output(0).get_target_inputs()):
            reader.replace_source_output(output)
        graph.remove_parameter(node)
    graph.validate_nodes_and_infer_types()
    return owners


def _constant(weight: Tensor, name: str, owners: Owners) -> Any:
    """Return a float32 output whose constant shares the weight's memory, which is added to ``owners``."""
    import openvino
    from openvino import opset13

    types = {torch.bfloat16: openvino.Type.bf16, torch.float16: openvino.Type.f16, torch.float32: openvino.Type.f32}
    array = (weight.view(torch.uint16) if weight.dtype != torch.float32 else weight).numpy()
    owners.append(array)
    constant = openvino.op.Constant(openvino.Tensor(array, openvino.Shape(list(weight.shape)), types[weight.dtype]))
    constant.set_friendly_name(name)
    if weight.dtype == torch.float32:
        return constant.output(0)
    unpacked = opset13.convert(constant, "f32")
    unpacked.get_rt_info()[DECOMPRESSION] = ""
    return unpacked.output(0)


def _as_half(weight: Tensor) -> Tensor:
    """Return float32 weights in bfloat16 if that is exact, which halves the memory that a forward pass reads."""
    half = weight.bfloat16()
    return half if _is_exact(half, weight) else weight


def _is_exact(half: Tensor, weight: Tensor) -> bool:
    """Return whether 16-bit values equal float32 ones, part by part, so that no whole copy is made."""
    parts = (slice(start, start + SMALL) for start in range(0, len(weight), SMALL))
    return all(torch.equal(half[part].float(), weight[part]) for part in parts)


class _StoredWeights:
    """Finds float32 weights in the files that they were loaded from, which may hold them in 16 bits.

    Args:
        files: Safetensors files; their tensors are mapped, not read.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._tensors: dict[bytes, Tensor] = {}
        self._files = files

    def find(self, weight: Tensor) -> Tensor:
        """Return the mapped 16-bit tensor with the same values, or the weight itself in its smallest exact form."""
        if not self._tensors:
            self._map()
        found = self._tensors.get(_key(weight))
        return _as_half(weight) if found is None or not _is_exact(found, weight) else found

    def _map(self) -> None:
        from safetensors import safe_open

        for path in self._files:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118  # it is no dictionary
                    tensor = file.get_tensor(name)
                    if tensor.dtype in (torch.bfloat16, torch.float16) and tensor.dim() > 1:
                        self._tensors[_key(tensor)] = tensor


def _key(weight: Tensor) -> bytes:
    """Return the shape of a weight and a sample of its values in float32."""
    flat = weight.reshape(-1)
    values: NDArray[np.float32] = flat[:: max(len(flat) // SAMPLE, 1)].float().numpy()
    return repr(tuple(weight.shape)).encode() + values.tobytes()
