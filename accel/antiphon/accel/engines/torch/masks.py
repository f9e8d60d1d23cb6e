"""Attention masks of a forward pass over a draft tree, as tensors."""

from __future__ import annotations

import torch

from antiphon.accel.drafting.tree import AttentionSpan, Tree


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
