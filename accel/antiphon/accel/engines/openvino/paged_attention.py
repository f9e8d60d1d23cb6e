"""Paged attention: the function that a model calls during tracing, and its translation to OpenVINO's operation.

Models call the function through transformers' attention interface, under the name `PAGED`. This module handles the
queries, keys and values of one layer, and the order of the operation's inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from antiphon.accel.engines.openvino.paged_inputs import TABLES, CacheShape

PAGED = "antiphon_openvino"
"""Name of this attention implementation in transformers."""

OPERATION = "antiphon::paged_attention"
"""Name of the operation in the traced graph."""

UNSUPPORTED = ("softcap", "position_bias")
"""Options of attention functions that the paged operation does not support."""


@dataclass(slots=True)
class Tracing:
    """Input and output of the attention function while a model is traced.

    Attributes:
        caches: Keys and values of each layer in turn: key, value, key, value, ...
        tables: The inputs named in `TABLES`.
        windows: Sliding window of each layer in tokens; 0 for none.
        shapes: The layers' cache shapes, recorded in the order of the calls.
    """

    caches: Sequence[Tensor] = ()
    tables: Sequence[Tensor] = ()
    windows: Sequence[int] = ()
    shapes: list[CacheShape] = field(default_factory=list)


_tracing: ContextVar[Tracing] = ContextVar("tracing")


@contextmanager
def tracing(given: Tracing) -> Iterator[Tracing]:
    """Make `paged_attention` use these tables and caches inside the ``with`` statement."""
    token = _tracing.set(given)
    try:
        yield given
    finally:
        _tracing.reset(token)


def paged_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Record the operation in the trace; return a tensor of the right shape with meaningless values.

    Sliding windows come from the configuration, because not every model passes them as options.

    Args:
        query: Queries, shape (rows, heads, 1, size).
        key: Keys, shape (rows, key heads, 1, size).
        value: Values, shape (rows, key heads, 1, value size).
        attention_mask: Ignored: the tables determine which rows each row attends to.
        options: Options of attention functions, such as ``scaling`` and ``s_aux`` (attention sinks).

    Returns:
        The output, shape (rows, 1, heads, value size), and None for the attention weights.

    Raises:
        ValueError: The model uses an option that the operation does not support.
    """
    if given := [name for name in UNSUPPORTED if options.get(name) is not None]:
        raise ValueError(f"{type(module).__name__} uses {', '.join(given)}, which paged attention does not have.")
    now = _tracing.get()
    layer = len(now.shapes)
    heads, size = int(query.shape[1]), int(query.shape[3])
    shape = CacheShape(int(key.shape[1]), int(key.shape[3]), int(value.shape[3]))
    now.shapes.append(shape)
    scaling = options.get("scaling")
    sinks = options.get("s_aux")
    caches = now.caches[2 * layer : 2 * layer + 2] or [query.new_zeros(0)] * 2
    attended = torch.ops.antiphon.paged_attention(
        _flatten_heads(query),
        _flatten_heads(key),
        _flatten_heads(value),
        *caches,
        *(now.tables or [query.new_zeros(0)] * len(TABLES)),
        torch.zeros((0, 0, 0, 0)) if sinks is None else sinks.float().reshape(1, heads, 1, 1),
        size**-0.5 if scaling is None else float(scaling),
        now.windows[layer] if now.windows else 0,
    )
    return attended.reshape(-1, 1, heads, shape.value_size), None


def to_openvino(context: Any) -> list[Any]:
    """Translate the traced operation; OpenVINO's PyTorch frontend calls this with the operation's context."""
    from openvino import opset13
    from openvino.op import _PagedAttentionExtension

    def number(value: float, dtype: Any) -> Any:
        return opset13.constant(np.array(value, dtype=dtype)).output(0)

    def empty(dtype: Any = np.int32) -> Any:
        return opset13.constant(np.zeros(0, dtype=dtype)).output(0)

    # Constant inputs below belong to features that are off: eviction scores, rotated blocks, sparse attention.
    inputs = [context.get_input(index) for index in range(5 + len(TABLES) + 1)]
    (*attended, past, begins, blocks, block_begins, longest, mask, mask_begins), sinks = inputs[:-1], inputs[-1]
    scale, window = (context.get_values_from_const_input(index) for index in (len(inputs), len(inputs) + 1))
    operation = _PagedAttentionExtension(
        [
            *(*attended, past, begins, blocks, block_begins),
            *(number(scale, np.float32), number(window, np.int32), empty(np.float32), longest),
            *(empty(), empty(), empty(), empty(np.float32)),
            *(empty(np.float32), number(0, np.int32), number(0, np.int32), sinks),
            *(number(0, np.int32), empty(), empty(), empty(), empty(), mask, mask_begins),
        ]
    )
    return [operation.output(0)]


def _flatten_heads(states: Tensor) -> Tensor:
    """Return states of shape (rows, heads, 1, size) as (rows, heads * size)."""
    return states.reshape(-1, int(states.shape[1]) * int(states.shape[3]))


def _shape_only(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> Tensor:
    return query.new_zeros((query.shape[0], query.shape[1] * value.shape[1] // key.shape[1]))


def _no_mask(*arguments: Any, **options: Any) -> None:
    """Return None, because the tables determine to which rows each row attends."""


_library: Any = torch.library.Library("antiphon", "DEF")  # type: ignore[no-untyped-call]  # torch leaves it without types
_library.define(
    "paged_attention(Tensor query, Tensor key, Tensor value, Tensor keys, Tensor values, "
    + ", ".join(f"Tensor {name}" for name in TABLES)
    + ", Tensor sinks, float scale, int window) -> Tensor"
)
_library.impl("paged_attention", _shape_only, "CompositeExplicitAutograd")
AttentionInterface.register(PAGED, paged_attention)
AttentionMaskInterface.register(PAGED, _no_mask)
