"""Change the MLP blocks of a graph before it is compiled, for speed and memory; `fuse_products` rounds weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from antiphon.accel.engines.numpy_logits import as_float32
from antiphon.accel.engines.openvino.weights import (
    Owners,
    TemporaryWeights,
    constant_memory,
    shared_constant,
    weights_of,
)

if TYPE_CHECKING:
    import openvino

FUSED = "LLMMLP"
"""OpenVINO's name of the operation of a whole MLP block."""

BLOCK = 512
"""Number of rows of weights that are converted at a time: they fit into the processor's cache."""

ACTIVATIONS, UNREACHED = ("Swish", "Gelu"), 3e38
"""Activations of MLP blocks, and the bounds of a clamp that changes no value."""


@dataclass(frozen=True, slots=True)
class GatedBlock:
    """An MLP block that computes ``down(activation(gate) * up)``. Attributes are nodes and inputs of the graph.

    Attributes:
        activation: The activation, whose input is the gate product.
        up: The input of the multiplication to which the up product is connected.
        down: The matrix product to which the multiplication's result is connected.
    """

    activation: Any
    up: Any
    down: Any

    @property
    def products(self) -> list[Any]:
        """The gate, up and down products; None for an operation that is not a product with weights."""
        outputs = [self.activation.input_value(0), self.up.get_source_output(), self.down.output(0)]
        return [_product(output) for output in outputs]


def find_gated_blocks(graph: openvino.Model) -> list[GatedBlock]:
    """Return the MLP blocks of a graph that compute ``down(activation(gate) * up)``."""
    return [block for node in graph.get_ops() if node.get_type_name() == "MatMul" for block in _gated_block(node)]


def _gated_block(product: Any) -> Iterator[GatedBlock]:
    node = product.input_value(0).get_node()
    if node.get_type_name() != "Multiply":
        return
    first, second = node.inputs()
    for gate, up in ((first, second), (second, first)):
        activation = gate.get_source_output().get_node()
        if activation.get_type_name() in ACTIVATIONS:
            yield GatedBlock(activation, up, product)
            return


def fuse_products(graph: openvino.Model, memory: TemporaryWeights) -> int:
    """Convert the weights of all MLP blocks to float16, so that OpenVINO fuses each block's three products.

    On CPUs with AMX a step with fused blocks takes a tenth less time (0.5 billion weights in bfloat16, 16 rows: 65
    instead of 75 ms). The fused operation only accepts float16 weights, and packs them in bfloat16 when the graph is
    compiled. Weights above 0.00006 keep their value; smaller weights change by at most 3e-8.

    Args:
        graph: The graph, which is changed.
        memory: Memory for the float16 weights; it can be freed after the first forward pass.

    Returns:
        The number of blocks. 0 if the weights of any block are unsuitable; the graph is then unchanged.
    """
    blocks = [block.products for block in find_gated_blocks(graph)]
    constants = [weights_of(product) if product is not None else None for block in blocks for product in block]
    if any(each is None or each.get_element_type().get_type_name() != "bf16" for each in constants):
        return 0
    halves = [weights for each in constants if (weights := _as_float16(each, memory)) is not None]
    if len(halves) < len(constants):
        return 0
    for product, weights in zip((product for block in blocks for product in block), halves, strict=True):
        product.input(1).replace_source_output(shared_constant(weights, "f16"))
    graph.validate_nodes_and_infer_types()
    return len(blocks)


def _as_float16(constant: Any, memory: TemporaryWeights) -> NDArray[np.float16] | None:
    """Return a constant's bfloat16 values in float16, or None if one of them is too large."""
    weights = constant_memory(constant)
    halves: NDArray[np.float16] = memory.array(weights.shape, np.float16)
    with np.errstate(over="ignore"):
        for start in range(0, len(weights), BLOCK):
            part = slice(start, start + BLOCK)
            halves[part] = as_float32(weights[part])
            if not np.isfinite(halves[part]).all():
                return None
    return halves


def keep_products_apart(graph: openvino.Model) -> None:
    """Insert a clamp that changes no value before each MLP block's activation, to prevent fusion.

    On CPUs with AMX, OpenVINO would otherwise fuse the three products of a block, and keep a
    float16 copy of their weights besides the packed copy. In a model of 1.5 billion parameters,
    three quarters of all weights are in such products.
    """
    from openvino import opset13

    for block in find_gated_blocks(graph):
        clamped = opset13.clamp(block.activation.input_value(0), -UNREACHED, UNREACHED)
        block.activation.input(0).replace_source_output(clamped.output(0))
    graph.validate_nodes_and_infer_types()


def merge_gate_and_up(graph: openvino.Model, owners: Owners) -> int:
    """Merge the gate and up products of each MLP block into one product, if their weights are adjacent in memory.

    In most checkpoints the weights are adjacent. One long product reads weights at a higher rate
    than two short products. Weights are not copied.

    Args:
        graph: The graph, which is changed.
        owners: List to which the owners of the new constants' memory are added.

    Returns:
        The number of merged pairs.
    """
    merged = 0
    for block in find_gated_blocks(graph):
        pair = block.products[:2]
        if None not in pair and pair[0].input_value(0) == pair[1].input_value(0):
            merged += _merge(pair, owners)
    graph.validate_nodes_and_infer_types()
    return merged


def _product(output: Any) -> Any:
    """Return the product with weights that computes an output, or None. A clamp is skipped."""
    node = output.get_node()
    if node.get_type_name() == "Clamp":
        node = node.input_value(0).get_node()
    return node if weights_of(node) is not None else None


def _merge(pair: list[Any], owners: Owners) -> bool:
    """Replace two products by one if their weights are adjacent in memory."""
    from openvino import opset13

    pair = sorted(pair, key=lambda product: int(weights_of(product).data.ctypes.data))
    first, second = (weights_of(product) for product in pair)
    sizes = [list(constant.get_output_shape(0)) for constant in (first, second)]
    kind = first.get_element_type()
    end = int(first.data.ctypes.data) + int(np.prod(sizes[0])) * kind.size
    if int(second.data.ctypes.data) != end or kind != second.get_element_type() or sizes[0] != sizes[1]:
        return False
    array = constant_memory(first, 2)
    owners.append(array)  # a view: the arrays of both constants own its memory
    weights = shared_constant(array, kind.get_type_name())
    product = opset13.matmul(pair[0].input_value(0), weights, False, True)
    axis, lengths = np.array(-1, dtype=np.int64), np.array([size[0] for size in sizes], dtype=np.int64)
    parts = opset13.variadic_split(product, opset13.constant(axis), opset13.constant(lengths))
    for index, replaced in enumerate(pair):
        for reader in list(replaced.output(0).get_target_inputs()):
            reader.replace_source_output(parts.output(index))
    return True
