"""Attach the large weights of a converted model as constants that share the memory of the model or its checkpoint.

A stored graph has an input in place of each large weight. Before compilation a constant replaces
this input, so no weight is copied or stored twice. Float32 weights that 16 bits represent exactly
become 16-bit constants.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import openvino
    from torch import Tensor
    from transformers import PreTrainedModel

INPUT_PREFIX = "weight:"
"""Start of the names of inputs that stand for large weights; the name of the parameter follows."""

SMALL = 4096
"""Tensors with fewer elements, and vectors, are stored in the graph in float32."""

DECOMPRESSION = "decompression_0"
"""Mark of a type conversion. Without this mark, OpenVINO stores unpacked float32 weights."""

KINDS = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
"""OpenVINO's names of element types, by torch's."""

SAMPLE = 4096
"""Number of values by which a weight is recognised in a checkpoint file."""

Owners = list[NDArray[Any]]
"""Arrays that own the memory of constants. OpenVINO does not keep them alive."""

WeightArrays = dict[str, tuple[NDArray[Any], str]]
"""For each parameter's name, the weight's values and OpenVINO's name of their type. 16-bit values
are stored as their bits, in uint16."""


def large_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the parameters that the graph does not contain, by name. Tied parameters occur once."""
    return {name: each for name, each in model.named_parameters() if each.dim() > 1 and each.numel() >= SMALL}


def attach_weights(graph: openvino.Model, model: PreTrainedModel, files: Sequence[Path] = ()) -> Owners:
    """Replace the inputs that stand for weights by constants that share the memory of the model or of its files.

    Args:
        graph: A graph of `conversion.paged_model`; a graph with its own weights is not changed.
        files: The model's checkpoint (safetensors), for models that were loaded in float32 from
            16-bit weights.

    Returns:
        The owners of the memory. The caller must keep them as long as the graph or its compiled form is in use.
    """
    return attach_arrays(graph, weight_arrays(model, files)) if _weight_inputs(graph) else []


def weight_arrays(model: PreTrainedModel, files: Sequence[Path] = ()) -> WeightArrays:
    """Return the large weights in the form in which they become constants. Arguments are as for `attach_weights`."""
    import torch

    stored, arrays = _StoredWeights(files), WeightArrays()
    for name, parameter in large_weights(model).items():
        weight = parameter.detach().contiguous()
        if weight.dtype == torch.float32:
            weight = stored.find(weight) if files else _as_half(weight)
        bits = (weight.view(torch.uint16) if weight.dtype != torch.float32 else weight).numpy()
        arrays[name] = bits, KINDS[str(weight.dtype).removeprefix("torch.")]
    return arrays


def attach_arrays(graph: openvino.Model, arrays: WeightArrays) -> Owners:
    """Replace the inputs that stand for weights by constants that share the arrays' memory."""
    owners: Owners = []
    for node in _weight_inputs(graph):
        name = node.get_friendly_name().removeprefix(INPUT_PREFIX)
        array, kind = arrays[name]
        owners.append(array)
        output = shared_constant(array, kind, name)
        for reader in list(node.output(0).get_target_inputs()):
            reader.replace_source_output(output)
        graph.remove_parameter(node)
    graph.validate_nodes_and_infer_types()
    return owners


def _weight_inputs(graph: openvino.Model) -> list[Any]:
    return [port.get_node() for port in graph.inputs if port.get_any_name().startswith(INPUT_PREFIX)]


def shared_constant(array: NDArray[Any], kind: str, name: str = "") -> Any:
    """Make a constant that shares the memory of an array; return the constant's output, converted to float32.

    Args:
        array: The values; 16-bit values are stored as their bits, in uint16. The array must outlive the graph and its
            compiled form.
        kind: Element type, "bf16", "f16" or "f32".
    """
    import openvino
    from openvino import opset13

    kinds = {"bf16": openvino.Type.bf16, "f16": openvino.Type.f16, "f32": openvino.Type.f32}
    constant = openvino.op.Constant(openvino.Tensor(array, openvino.Shape(list(array.shape)), kinds[kind]))
    if name:
        constant.set_friendly_name(name)
    if kind == "f32":
        return constant.output(0)
    unpacked = opset13.convert(constant, "f32")
    unpacked.get_rt_info()[DECOMPRESSION] = ""
    return unpacked.output(0)


def mark_decompression(graph: openvino.Model) -> None:
    """Mark type conversions of a graph's 16-bit weights as decompression, because a stored graph loses these marks."""
    for node in graph.get_ops():
        if node.get_type_name() == "Convert":
            weights = node.input_value(0).get_node()
            if weights.get_type_name() == "Constant" and weights.get_element_type().get_type_name() in ("bf16", "f16"):
                node.get_rt_info()[DECOMPRESSION] = ""


def weights_of(node: Any) -> Any:
    """Return the constant with the weights, (outputs, inputs), of a plain matrix product; None for any other node."""
    if node.get_type_name() != "MatMul" or node.get_attributes() != {"transpose_a": False, "transpose_b": True}:
        return None
    constant = node.input_value(1).get_node()
    if constant.get_type_name() == "Convert":
        constant = constant.input_value(0).get_node()
    is_matrix = constant.get_type_name() == "Constant" and len(constant.get_output_shape(0)) == 2
    return constant if is_matrix and constant.get_element_type().get_type_name() in KINDS.values() else None


def constant_memory(constant: Any, count: int = 1) -> NDArray[Any]:
    """Return the memory of a 16-bit or float32 constant as a matrix, without a copy.

    16-bit values are returned as their bits, in uint16.

    Args:
        constant: A constant of two dimensions.
        count: The result covers this number of matrices of the constant's size, which must be
            adjacent in memory.
    """
    rows, columns = (int(size) for size in constant.get_output_shape(0))
    kind: type[Any] = np.uint16 if constant.get_element_type().size == 2 else np.float32
    size = count * rows * columns * np.dtype(kind).itemsize
    memory: Any = (ctypes.c_char * size).from_address(int(constant.data.ctypes.data))
    array: NDArray[Any] = np.frombuffer(memory, dtype=kind).reshape(count * rows, columns)
    return array


def _as_half(weight: Tensor) -> Tensor:
    """Convert float32 weights to bfloat16 if that is exact, which halves the memory that a forward pass reads."""
    half = weight.bfloat16()
    return half if _is_exact(half, weight) else weight


def _is_exact(half: Tensor, weight: Tensor) -> bool:
    """Return whether 16-bit values equal float32 values. Parts are compared one by one, to save memory."""
    import torch

    parts = (slice(start, start + SMALL) for start in range(0, len(weight), SMALL))
    return all(torch.equal(half[part].float(), weight[part]) for part in parts)


class TemporaryWeights:
    """Memory for constants that OpenVINO packs into its own memory; freed after the graph's first forward pass.

    The address range stays reserved, because the graph still refers to it. Freed memory reads as
    zeros. Systems without the system call `madvise` keep the memory.
    """

    def __init__(self) -> None:
        self._maps: list[mmap.mmap] = []

    def __len__(self) -> int:
        return len(self._maps)

    def array(self, shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
        """Return a new array of zeros in this memory."""
        count = int(np.prod(shape))
        size = max(count * np.dtype(dtype).itemsize, 1)
        private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
        self._maps.append(mmap.mmap(-1, size, **private))
        return np.frombuffer(self._maps[-1], dtype=dtype, count=count).reshape(shape)

    def release(self) -> None:
        """Free the memory."""
        for each in self._maps if hasattr(mmap, "MADV_DONTNEED") else ():
            each.madvise(mmap.MADV_DONTNEED)


class _StoredWeights:
    """Finds the 16-bit originals of float32 weights in the files from which they were loaded.

    Args:
        files: Safetensors files; their tensors are memory-mapped.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._tensors: dict[bytes, Tensor] = {}
        self._files = files

    def find(self, weight: Tensor) -> Tensor:
        """Return the mapped 16-bit tensor that has the weight's values; if there is none, the result of `_as_half`."""
        if not self._tensors:
            self._map()
        found = self._tensors.get(_key(weight))
        return _as_half(weight) if found is None or not _is_exact(found, weight) else found

    def _map(self) -> None:
        import torch
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
