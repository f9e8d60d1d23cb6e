"""Exact attention, in which no row's rounding depends on other rows, and functions to replace a model's attention.

Exact attention computes each row of a draft alone, as a plain step does. It recognizes a draft by
its boolean mask: a causal forward pass has no mask or an additive mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import local
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from antiphon.accel.drafting.tree import AttentionSpan, Tree

EXACT = "antiphon_exact"
"""Name of exact attention in transformers, for `model.set_attn_implementation`."""

SCORE_BIASES = ("softcap", "s_aux", "position_bias")
"""Options that change attention scores. Scaled-dot-product attention does not support them."""

HALF_DTYPES = (torch.float16, torch.bfloat16)
"""Half precisions, in which the order of a sum often changes its result."""

Attention = tuple[Tensor, Tensor | None]


class _ThreadState(local):
    """The attention that overrides the model's attention in this thread's forward pass."""

    implementation: str | None = None


_thread_state = _ThreadState()


def exact_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> Attention:
    """Attend row by row if the mask belongs to a draft tree, otherwise like "sdpa".

    Each row is one query over exactly the slots to which it attends, in the order of their positions. The output is
    zero for a row that attends to nothing.

    Args:
        query: Shape (1, heads, rows, size).
        key: Shape (1, key heads, slots, size); the last slots are the rows themselves.
        value: Shape (1, key heads, slots, size).
        attention_mask: Booleans of shape (1, 1, rows, slots) for a draft tree; None or numbers otherwise.
        options: Passed on to "sdpa".

    Returns:
        Output of shape (1, rows, heads, size), and no attention weights.

    Raises:
        ValueError: The model adds a bias to its scores, or the batch has several prompts.
    """
    if given := [name for name in SCORE_BIASES if options.get(name) is not None]:
        raise ValueError(
            f"{type(module).__name__} adds {', '.join(given)} to its scores, which exact attention does not support."
        )
    sdpa: Callable[..., Attention] = AttentionInterface()["sdpa"]
    if attention_mask is None or attention_mask.dtype != torch.bool:
        return sdpa(module, query, key, value, attention_mask, **options)
    if query.shape[0] != 1:
        raise ValueError(f"Exact attention decodes one prompt at a time; the batch has {query.shape[0]}.")
    output = query.new_zeros((1, query.shape[2], query.shape[1], value.shape[-1]))
    for row, (start, ancestors) in enumerate(_visible_slots(attention_mask[0, 0])):
        if ancestors:
            cached = key.shape[2] - query.shape[2]
            keys, values = (_gather(states, start, cached, ancestors) for states in (key, value))
            output[:, row : row + 1], _ = sdpa(module, query[:, :, row : row + 1], keys, values, None, **options)
    return output, None


def _visible_slots(mask: Tensor) -> list[tuple[int, list[int]]]:
    """Return, for each row of a mask (rows, slots), the first cached slot and the rows to which the row attends."""
    rows, slots = mask.shape
    cached = slots - rows
    starts = (cached - mask[:, :cached].sum(dim=-1)).tolist()  # a row attends to a suffix of the cached slots
    return [
        (start, [other for other, is_visible in enumerate(line) if is_visible])
        for start, line in zip(starts, mask[:, cached:].tolist(), strict=True)
    ]


def _gather(states: Tensor, start: int, cached: int, rows: list[int]) -> Tensor:
    """Return the states of the cached slots from ``start`` on, and then of the given rows.

    The result is a view of ``states`` if no row before the last given one is skipped.
    """
    if rows[-1] == len(rows) - 1:
        return states[:, :, start : cached + len(rows)]
    selected = states[:, :, cached:].index_select(2, torch.tensor(rows, device=states.device))
    return torch.cat([states[:, :, start:cached], selected], dim=2)


def _causal_mask(*arguments: Any, dtype: torch.dtype = torch.float32, **options: Any) -> Tensor | None:
    """Return a causal mask as None or numbers, because for exact attention a boolean mask means a draft tree."""
    sees = sdpa_mask(*arguments, **options)
    if sees is None or not is_overridden(EXACT):
        return sees
    return additive_mask(sees, dtype)


def implementation_of(model: PreTrainedModel) -> str:
    """Return the model's current attention implementation; transformers has no public attribute for it."""
    return str(model.config.get_text_config(decoder=True)._attn_implementation or "eager")


@contextmanager
def use_attention(model: PreTrainedModel, implementation: str) -> Iterator[None]:
    """Set the model's attention implementation inside the context. The caller holds the engine's lock.

    This takes up to a millisecond, because transformers visits every module. Some models keep their own
    implementation.
    """
    before = implementation_of(model)
    if before == implementation:
        yield
        return
    model.set_attn_implementation(implementation)
    other, _thread_state.implementation = _thread_state.implementation, implementation
    try:
        yield
    finally:
        _thread_state.implementation = other
        model.set_attn_implementation(before)


def accepts_attention(model: PreTrainedModel, implementation: str) -> bool:
    """Return whether the model's attention can be replaced."""
    with use_attention(model, implementation):
        return implementation_of(model) == implementation


@contextmanager
def override_attention(model: PreTrainedModel, implementation: str) -> Iterator[None]:
    """Override the attention for one forward pass. This is faster than `use_attention`.

    The caller holds the engine's lock, and `use_attention` must have set this implementation once
    before. A concurrent forward pass of a thread without the lock still uses "sdpa".
    """
    config = model.config.get_text_config(decoder=True)
    before, config._attn_implementation = config._attn_implementation, implementation
    other, _thread_state.implementation = _thread_state.implementation, implementation
    try:
        yield
    finally:
        config._attn_implementation, _thread_state.implementation = before, other


@contextmanager
def varying_shapes(model: PreTrainedModel) -> Iterator[None]:
    """Turn off cuDNN's attention inside the context.

    For each new shape, cuDNN plans its kernels. This takes some 40 ms on an H100, and every
    decoding step has a new number of cached tokens. Steps of a fixed shape (`SlotCache`) use cuDNN.
    The setting applies to the whole process. It may slow down concurrent forward passes of other
    models, but does not change their results.

    Args:
        model: The model; nothing is changed unless it is on a CUDA GPU.
    """
    is_enabled: Callable[[], bool] = torch.backends.cuda.cudnn_sdp_enabled
    if model.device.type != "cuda" or not is_enabled():
        yield
        return
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)


def is_overridden(implementation: str) -> bool:
    """Return whether this thread's forward pass uses this attention; True during torch.compile."""
    return torch.compiler.is_compiling() or _thread_state.implementation == implementation


AttentionInterface.register(EXACT, exact_attention)
AttentionMaskInterface.register(EXACT, _causal_mask)


def attention_mask(tree: Tree, span: AttentionSpan, *, length: int, offset: int = 0, padding: int = 0) -> torch.Tensor:
    """Return the mask of one kind of layer: the columns to which each row attends.

    Windows and chunks are counted in positions (slots minus padding), not in rows, because siblings share a position.

    Args:
        span: How far the layers look back.
        length: Number of cached tokens.
        offset: First slot that the layer still holds.
        padding: Number of left padding slots, to which no text row attends. Padding rows attend to
            themselves, because a row without any column would be NaN.

    Returns:
        Booleans of shape (rows, length - offset + rows): slots ``offset`` to ``length - 1``, then the rows.
    """
    cached = length - offset
    sees = torch.ones((len(tree), cached + len(tree)), dtype=torch.bool)
    sees[:, cached:] = torch.from_numpy(tree.ancestor_mask)
    hidden = max(padding - offset, 0)
    sees[:, :hidden] = False
    padding_rows = torch.arange(hidden - cached) if hidden > cached else torch.arange(0)
    sees[padding_rows, cached + padding_rows] = True
    sees[len(tree) - tree.padding_rows :] = False
    if span == AttentionSpan():
        return sees
    rows = torch.from_numpy(tree.depths) + (length - padding)
    columns = torch.cat([torch.arange(offset, length) - padding, rows])
    if span.window is not None:
        sees &= rows[:, None] - columns < span.window
    if span.chunk is not None:
        sees &= rows[:, None] // span.chunk == columns // span.chunk
    return sees


def additive_mask(sees: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the mask that eager attention adds to its scores: 0 where a row attends, else the lowest number.

    Args:
        sees: Boolean mask of any shape: True where a row attends.
    """
    return torch.zeros_like(sees, dtype=dtype).masked_fill_(~sees, torch.finfo(dtype).min)
