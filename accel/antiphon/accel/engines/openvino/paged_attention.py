"""Attention over paged keys and values: what a model calls while it is traced, and the operation that it becomes.

Knows one layer's queries, keys and values, and the order of the operation's inputs; no models and no texts. A model
reaches it by its name in transformers' own interface of attention functions.
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

PAGED = "antiphon_openvino"
"""The name under which transformers knows this attention."""

OPERATION = "antiphon::paged_attention"
"""The name under which the traced graph holds it."""

TABLES = (
    "past_lens",
    "subsequence_begins",
    "block_indices",
    "block_indices_begins",
    "max_context_len",
    "qq_bias",
    "qq_bias_begins",
)
"""What all layers are told about the texts of a forward, in the order of the operation's inputs."""

BLOCK = 32
"""Tokens of one block of keys or values: what the CPU plug-in was made for."""

UNSUPPORTED = ("softcap", "position_bias")
"""What some models add to or do with their scores, and the paged operation cannot."""


@dataclass(frozen=True, slots=True)
class Heads:
    """The shape of one layer's memory: heads of keys and values, and the size of each."""

    count: int
    key_size: int
    value_size: int


@dataclass(slots=True)
class Tracing:
    """What attention is given while a model is traced: its memory, the tables, and each layer's window (0: none).

    ``caches`` holds keys and values of each layer in turn. ``heads`` notes the layers' shapes in the order of calls.
    """

    caches: Sequence[Tensor] = ()
    tables: Sequence[Tensor] = ()
    windows: Sequence[int] = ()
    heads: list[Heads] = field(default_factory=list)


_tracing: ContextVar[Tracing] = ContextVar("tracing")


@contextmanager
def tracing(given: Tracing) -> Iterator[Tracing]:
    """Let attention take these tables and caches in here."""
    token = _tracing.set(given)
    try:
        yield given
    finally:
        _tracing.reset(token)


def paged_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Name the operation in the trace; what is computed here is not used, only its shape.

    ``query`` has shape (1, heads, rows, size), ``key`` and ``value`` (1, key heads, rows, size), and the output
    (1, rows, heads, size). Windows come from the configuration, for not every model hands them on.

    Raises:
        ValueError: the model does something to its scores that the operation cannot.
    """
    if given := [name for name in UNSUPPORTED if options.get(name) is not None]:
        raise ValueError(f"{type(module).__name__} uses {', '.join(given)}, which paged attention does not have.")
    now = _tracing.get()
    layer = len(now.heads)
    heads, size = int(query.shape[1]), int(query.shape[3])
    own = Heads(int(key.shape[1]), int(key.shape[3]), int(value.shape[3]))
    now.heads.append(own)
    scaling = options.get("scaling")
    sinks = options.get("s_aux")
    caches = now.caches[2 * layer : 2 * layer + 2] or [query.new_zeros(0)] * 2
    attended = torch.ops.antiphon.paged_attention(
        _flat(query),
        _flat(key),
        _flat(value),
        *caches,
        *(now.tables or [query.new_zeros(0)] * len(TABLES)),
        torch.zeros((0, 0, 0, 0)) if sinks is None else sinks.float().reshape(1, heads, 1, 1),
        size**-0.5 if scaling is None else float(scaling),
        now.windows[layer] if now.windows else 0,
    )
    return attended.reshape(1, -1, heads, own.value_size), None


def as_operation(context: Any) -> list[Any]:
    """What the name in the trace becomes in the graph."""
    from openvino import opset13
    from openvino.op import _PagedAttentionExtension

    def number(value: float, kind: Any) -> Any:
        return opset13.constant(np.array(value, dtype=kind)).output(0)

    def none(kind: Any = np.int32) -> Any:
        return opset13.constant(np.zeros(0, dtype=kind)).output(0)

    # The places between the tables: scores that decide on eviction, rotated blocks, sparse attention. All are off.
    inputs = [context.get_input(index) for index in range(5 + len(TABLES) + 1)]
    (*attended, past, begins, blocks, block_begins, longest, sees, sees_begins), sinks = inputs[:-1], inputs[-1]
    scale, window = (context.get_values_from_const_input(index) for index in (len(inputs), len(inputs) + 1))
    operation = _PagedAttentionExtension(
        [
            *(*attended, past, begins, blocks, block_begins),
            *(number(scale, np.float32), number(window, np.int32), none(np.float32), longest),
            *(none(), none(), none(), none(np.float32)),
            *(none(np.float32), number(0, np.int32), number(0, np.int32), sinks),
            *(number(0, np.int32), none(), none(), none(), none(), sees, sees_begins),
        ]
    )
    return [operation.output(0)]


def name_heads(graph: Any) -> list[Heads]:
    """Tell every paged operation of a graph the shape of its memory, which a file does not keep; all, by layers."""
    layers: dict[int, Heads] = {}
    for operation in graph.get_ops():
        if operation.get_type_name() != "PagedAttentionExtension":
            continue
        keys, values = (operation.input_value(index).get_partial_shape() for index in (3, 4))
        own = Heads(*(each.get_length() for each in (keys[1], keys[3], values[3])))
        notes = operation.get_rt_info()
        notes["num_k_heads"], notes["k_head_size"] = own.count, own.key_size
        notes["num_v_heads"], notes["v_head_size"] = own.count, own.value_size
        layers[int(operation.input_value(3).get_node().get_friendly_name().rpartition(".")[2])] = own
    return [layers[layer] for layer in sorted(layers)]


def _flat(states: Tensor) -> Tensor:
    """One line for each row: all of its heads."""
    return states.transpose(1, 2).reshape(-1, int(states.shape[1]) * int(states.shape[3]))


def _shape_alone(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> Tensor:
    return query.new_zeros((query.shape[0], query.shape[1] * value.shape[1] // key.shape[1]))


def _no_mask(*arguments: Any, **options: Any) -> None:
    """Who sees whom is in the tables."""


_library: Any = torch.library.Library("antiphon", "DEF")  # type: ignore[no-untyped-call]  # torch leaves it without types
_library.define(
    "paged_attention(Tensor query, Tensor key, Tensor value, Tensor keys, Tensor values, "
    + ", ".join(f"Tensor {name}" for name in TABLES)
    + ", Tensor sinks, float scale, int window) -> Tensor"
)
_library.impl("paged_attention", _shape_alone, "CompositeExplicitAutograd")
AttentionInterface.register(PAGED, paged_attention)
AttentionMaskInterface.register(PAGED, _no_mask)
