"""Attention that reads shared keys and values once: the query heads of a group become rows of one head.

Grouped-query models let several query heads share one head of keys and values. Under a tree's mask, transformers first
copies these for every query head, over the whole context and in every layer. In half precision on a CPU torch has no
fast attention for a single row, and packed there are several. Knows masks, keys and values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from antiphon.accel.engines.torch.attention import BIASES, HALF, Attention, accepts, implementation_of, is_lent

PACKED = "antiphon_packed"
"""The name under which transformers knows this attention."""

RAGGED = "antiphon_ragged"
"""That of the attention over several texts, which packs the rows of each."""

MOST = 128
"""From so many rows on, attention itself costs more than the copies: a prompt is read by "sdpa"."""


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> Attention:
    """Attend as "sdpa" does, and without copies of the keys and values where a mask is the same for all heads.

    ``query`` has shape (batch, heads, rows, size), ``key`` and ``value`` (batch, key heads, slots, size), and the mask
    (batch, 1, rows, slots). The output has shape (batch, rows, heads, size). What packing cannot do (one query head
    to each key head, masks by head, biases, several rows without a mask) is left to "sdpa", and so is a plain step
    wherever that is as fast.
    """
    groups = getattr(module, "num_key_value_groups", 1)
    batch, heads, rows, size = query.shape
    is_alone = rows == 1 and is_slow_alone(query.device, query.dtype)
    is_apt = is_alone if attention_mask is None else _is_shared(attention_mask)
    if (
        groups == 1
        or rows > MOST
        or not is_apt
        or not is_ours()
        or any(options.get(name) is not None for name in BIASES)
    ):
        sdpa: Callable[..., Attention] = AttentionInterface()["sdpa"]
        return sdpa(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **options)
    output = scaled_dot_product_attention(
        query.reshape(batch, heads // groups, groups * rows, size),
        key,
        value,
        attn_mask=None if attention_mask is None else _packed(attention_mask, groups, query.dtype),
        dropout_p=dropout,
        scale=scaling,
    )
    return output.reshape(batch, heads, rows, -1).transpose(1, 2).contiguous(), None


def is_ours() -> bool:
    """Whether this thread's forward is one that may be packed; a stranger's is attended as ever."""
    return is_lent(PACKED) or is_lent(RAGGED)


def is_slow_alone(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch attends a single row without its fast kernel there, in many times the time of several."""
    return device.type == "cpu" and dtype in HALF


def _is_shared(mask: Tensor) -> bool:
    return mask.ndim == 4 and mask.shape[1] == 1


def _packed(mask: Tensor, groups: int, dtype: torch.dtype) -> Tensor:
    """The mask for ``groups`` heads as rows; on a CPU in numbers, made once for all layers of a forward.

    It is kept with the mask itself: to look it up by the mask in a table took a sixth of the time of attention.
    """
    if mask.device.type != "cpu" or torch.compiler.is_compiling():
        return mask.repeat(1, 1, groups, 1)
    known: dict[tuple[int, torch.dtype], Tensor] = vars(mask).setdefault(PACKED, {})
    if (groups, dtype) not in known:
        is_boolean = mask.dtype == torch.bool
        numbers = torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -torch.inf) if is_boolean else mask
        known[groups, dtype] = numbers.repeat(1, 1, groups, 1)
    return known[groups, dtype]


def why_not_packed(model: PreTrainedModel) -> str | None:
    """Why packing has nothing to offer this model, or None where it has."""
    implementation = implementation_of(model)
    if implementation != "sdpa":
        return f"its attention implementation is {implementation!r}, and packing stands in for 'sdpa'"
    if all(getattr(module, "num_key_value_groups", 1) == 1 for module in model.modules()):
        return "every query head has keys and values of its own"
    return None if accepts(model, PACKED) else "it does not let itself be given another attention"


AttentionInterface.register(PACKED, packed_attention)
AttentionMaskInterface.register(PACKED, sdpa_mask)
