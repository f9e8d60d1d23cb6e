"""The inputs of paged attention in a graph: tables of the sequences, and the shape of each layer's KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import openvino

ATTENTION = "PagedAttentionExtension"
"""OpenVINO's name of the paged attention operation."""

TABLES = (
    "past_lens",
    "subsequence_begins",
    "block_indices",
    "block_indices_begins",
    "max_context_len",
    "qq_bias",
    "qq_bias_begins",
)
"""Inputs that describe the sequences of a forward pass, in the order of the operation's inputs."""

BLOCK_SIZE = 32
"""Number of tokens per block: the size that the CPU plug-in supports."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Shape of one layer's KV cache.

    Attributes:
        num_heads: Number of key and value heads.
    """

    num_heads: int
    key_size: int
    value_size: int


def set_cache_shapes(graph: Any) -> list[CacheShape]:
    """Set the cache shapes of a graph's paged operations, because saving a graph loses the shapes.

    Returns:
        The shapes of all layers, in their order.
    """
    layers: dict[int, CacheShape] = {}
    for operation in graph.get_ops():
        if operation.get_type_name() != ATTENTION:
            continue
        keys, values = (operation.input_value(index).get_partial_shape() for index in (3, 4))
        shape = CacheShape(*(each.get_length() for each in (keys[1], keys[3], values[3])))
        info = operation.get_rt_info()
        info["num_k_heads"], info["k_head_size"] = shape.num_heads, shape.key_size
        info["num_v_heads"], info["v_head_size"] = shape.num_heads, shape.value_size
        layers[int(operation.input_value(3).get_node().get_friendly_name().rpartition(".")[2])] = shape
    return [layers[layer] for layer in sorted(layers)]


STATE_TABLES = (
    "state_rows",
    "state_outputs",
    "state_begins",
    "state_blocks",
    "state_block_begins",
    "state_past_lens",
    "state_intervals",
)
"""Inputs that describe the paths of a forward pass. All layers with state read them.

``state_rows``: the rows of all paths, one path after the other. ``state_outputs``: for each row of
the forward pass, an index in ``state_rows`` where it occurs. The others are inputs of the
operations, in their order: where each path begins, the blocks of all paths, where the blocks of
each path begin, the number of tokens before each path, and the interval of each path. A state is
written after the last row, and after each multiple of the interval (in tokens).
"""

STATES = "state_cache."
"""Prefix of the names of inputs that hold states; the index of the state follows."""


def state_shapes(graph: openvino.Model) -> list[tuple[int, ...]]:
    """Return the shape of each state of a graph, in the order of `STATES`; empty for a graph without states."""
    ports = {port.get_any_name(): port for port in graph.inputs}
    shapes: list[tuple[int, ...]] = []
    while (port := ports.get(f"{STATES}{len(shapes)}")) is not None:
        _, *dimensions = port.get_partial_shape()
        shapes.append(tuple(each.get_length() for each in dimensions))
    return shapes
