"""Changes to the MLP blocks of a graph before it is compiled: speed and memory, never values."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from antiphon.accel.engines.openvino.weights import DECOMPRESSION, Owners

if TYPE_CHECKING:
    import openvino

ACTIVATIONS, UNREACHED = ("Swish", "Gelu"), 3e38
"""Activations of MLP blocks, and the bounds of a clamp that changes no value."""


@dataclass(frozen=True, slots=True)
class GatedBlock:
    """The part of an MLP block that computes ``activation(gate) * up``. Attributes are nodes and inputs of the graph.

    Attributes:
        activation: The activation, whose input is the gate product.
        up: Input of the multiplication that reads the other product.
    """

    activation: Any
    up: Any


def find_gated_blocks(graph: openvino.Model) -> list[GatedBlock]:
    """Return the gated MLP blocks: a matrix product reads the product of an activation and another product."""
    return [block for node in graph.get_ops() if node.get_type_name() == "MatMul" for block in _gated_block(node)]


def _gated_block(product: Any) -> Iterator[GatedBlock]:
    node = product.input_value(0).get_node()
    if node.get_type_name() != "Multiply":
        return
    first, second = node.inputs()
    for gate, up in ((first, second), (second, first)):
        activation = gate.get_source_output().get_node()
        if activation.get_type_name() in ACTIVATIONS:
            yield GatedBlock(activation, up)
            return


def keep_products_apart(graph: openvino.Model) -> None:
    """Put a clamp that changes no value before the activation of each MLP block.

    On CPUs with AMX, OpenVINO would otherwise fuse the three products of the block, and keep a float16 copy of their
    weights in addition to the packed one: three quarters of the weights of a model of 1.5 billion parameters.
    """
    from openvino import opset13

    for block in find_gated_blocks(graph):
        clamped = opset13.clamp(block.activation.input_value(0), -UNREACHED, UNREACHED)
        block.activation.input(0).replace_source_output(clamped.output(0))
    graph.validate_nodes_and_infer_types()


def merge_gate_and_up(graph: openvino.Model, owners: Owners) -> int:
    """Compute the gate and up products of each MLP block by one product, if their weights are adjacent in memory.

    In ordinary checkpoints they are. One long product reads weights at a higher rate than two short ones. No weight is
    copied.

    Args:
        graph: The graph, which is changed.
        owners: Receives the owners of the memory of the new constants.

    Returns:
        The number of merged pairs.
    """
    merged = 0
    for block in find_gated_blocks(graph):
        pair = [_product(block.activation.input_value(0)), _product(block.up.get_source_output())]
        if None not in pair and pair[0].input_value(0) == pair[1].input_value(0):
            merged += _merge(pair, owners)
    graph.validate_nodes_and_infer_types()
    return merged


def _product(output: Any) -> Any:
    """Return the matrix product of weights that computes an output, before or after a clamp, or None."""
    node = output.get_node()
    if node.get_type_name() == "Clamp":
        node = node.input_value(0).get_node()
    if node.get_type_name() != "MatMul" or node.get_attributes() != {"transpose_a": False, "transpose_b": True}:
        return None
    return node if _constant(node) is not None else None


def _constant(product: Any) -> Any:
    """Return the constant with a product's weights, (outputs, inputs), or None if they are no plain constant."""
    node = product.input_value(1).get_node()
    if node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    is_matrix = node.get_type_name() == "Constant" and len(node.get_output_shape(0)) == 2
    return node if is_matrix and node.get_element_type().get_type_name() in ("bf16", "f16", "f32") else None


def _merge(pair: list[Any], owners: Owners) -> bool:
    """Replace two products by one if the weights of one begin where those of the other end."""
    import openvino
    from openvino import opset13

    pair = sorted(pair, key=lambda product: int(_constant(product).data.ctypes.data))
    first, second = (_constant(product) for product in pair)
    sizes = [list(constant.get_output_shape(0)) for constant in (first, second)]
    start, kind = int(first.data.ctypes.data), first.get_element_type()
    num_bytes = [int(np.prod(size)) * kind.size for size in sizes]
    is_adjacent = int(second.data.ctypes.data) == start + num_bytes[0]
    if not is_adjacent or kind != second.get_element_type() or sizes[0][1] != sizes[1][1]:
        return False
    values = np.dtype(np.uint16 if kind.size == 2 else np.float32)
    memory = (ctypes.c_char * sum(num_bytes)).from_address(start)
    array = np.frombuffer(memory, dtype=values).reshape(sizes[0][0] + sizes[1][0], sizes[0][1])
    owners.append(array)  # the memory itself belongs to the arrays that the first constants share, also owners
    weights = openvino.op.Constant(openvino.Tensor(array, openvino.Shape(list(array.shape)), kind)).output(0)
    if kind.size == 2:
        unpacked = opset13.convert(weights, "f32")
        unpacked.get_rt_info()[DECOMPRESSION] = ""
        weights = unpacked.output(0)
    product = opset13.matmul(pair[0].input_value(0), weights, False, True)
    axis, lengths = np.array(-1, dtype=np.int64), np.array([size[0] for size in sizes], dtype=np.int64)
    parts = opset13.variadic_split(product, opset13.constant(axis), opset13.constant(lengths))
    for index, replaced in enumerate(pair):
        for reader in list(replaced.output(0).get_target_inputs()):
            reader.replace_source_output(parts.output(index))
    return True
