"""The inputs of paged attention in a graph: tables of the sequences, and the shape of each layer's KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
