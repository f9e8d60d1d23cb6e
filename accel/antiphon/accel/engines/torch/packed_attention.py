"""Packed attention for grouped-query models: the query heads of a group become rows of one head.

In grouped-query models several query heads share one head of keys and values. If there is a mask,
as for a draft tree, transformers copies all keys and values for every query head, in every layer.
Packed attention reads them in place. On two cores of a Xeon with AMX, steps of 4 to 16 rows are 1.2
to 1.4 times as fast after 4,096 tokens of context, and equally fast after 64 tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from antiphon.accel.engines.torch.attention import (
    SCORE_BIASES,
    Attention,
    accepts_attention,
    implementation_of,
    is_overridden,
)

PACKED = "antiphon_packed"
"""Name of packed attention in transformers."""

RAGGED = "antiphon_ragged"
"""Name of the attention over a batch of sequences (`ragged_attention`) in transformers."""

MAX_ROWS = 128
"""Forward passes with more rows use "sdpa", because attention itself then costs more than the copies."""


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
    """Attend like "sdpa", but without copying keys and values if the mask is the same for all heads.

    "sdpa" is called for everything else: forward passes without a mask or with many rows, models with one query
    head per key head, masks that differ by head, biases, and forward passes that the engine did not start.

    Args:
        query: Shape (batch, heads, rows, size).
        key: Shape (batch, key heads, slots, size).
        value: Shape (batch, key heads, slots, size).
        attention_mask: Shape (batch, 1, rows, slots), boolean or additive; None for a causal forward pass.
        scaling: Factor of the scores; None: torch's default.
        options: Passed on to "sdpa".

    Returns:
        Output of shape (batch, rows, heads, size), and no attention weights.
    """
    groups = getattr(module, "num_key_value_groups", 1)
    batch, heads, rows, size = query.shape
    if (
        groups == 1
        or rows > MAX_ROWS
        or attention_mask is None
        or attention_mask.ndim != 4
        or attention_mask.shape[1] != 1  # it differs between heads
        or not (is_overridden(PACKED) or is_overridden(RAGGED))  # not the engine's forward pass
        or any(options.get(name) is not None for name in SCORE_BIASES)
    ):
        sdpa: Callable[..., Attention] = AttentionInterface()["sdpa"]
        return sdpa(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **options)
    output = scaled_dot_product_attention(
        query.reshape(batch, heads // groups, groups * rows, size),
        key,
        value,
        attn_mask=_packed_mask(attention_mask, groups, query.dtype),
        dropout_p=dropout,
        scale=scaling,
    )
    return output.reshape(batch, heads, rows, -1).transpose(1, 2).contiguous(), None


def _packed_mask(mask: Tensor, groups: int, dtype: torch.dtype) -> Tensor:
    """Repeat the mask's rows for each of ``groups`` heads and make the mask additive, once for all layers.

    The result is stored as an attribute of the mask, because a lookup in a table would be slow.
    """
    if torch.compiler.is_compiling():
        return mask.repeat(1, 1, groups, 1)
    made: dict[tuple[int, torch.dtype], Tensor] = vars(mask).setdefault(PACKED, {})
    if (groups, dtype) not in made:
        is_boolean = mask.dtype == torch.bool
        numbers = torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -torch.inf) if is_boolean else mask
        made[groups, dtype] = numbers.repeat(1, 1, groups, 1)
    return made[groups, dtype]


def why_not_packed(model: PreTrainedModel) -> str | None:
    """Return why packed attention does not help this model; None if it does."""
    implementation = implementation_of(model)
    if implementation != "sdpa":
        return f"its attention implementation is {implementation!r}, and packing replaces 'sdpa' only"
    if all(getattr(module, "num_key_value_groups", 1) == 1 for module in model.modules()):
        return "every query head has keys and values of its own"
    return None if accepts_attention(model, PACKED) else "its attention cannot be replaced"


AttentionInterface.register(PACKED, packed_attention)
AttentionMaskInterface.register(PACKED, sdpa_mask)
