"""Attention masks of a forward over a tree of rows, as tensors. Knows neither models nor drafts."""

from __future__ import annotations

import torch

from antiphon.accel.drafting.tree import AttentionSpan, Tree


def mask(tree: Tree, span: AttentionSpan, *, length: int, offset: int = 0, padding: int = 0) -> torch.Tensor:
    """Who sees what in one kind of layer, as booleans of shape (rows, length - offset + rows).

    Columns are the cached slots ``offset`` to ``length - 1``, then the rows themselves. Slots below ``padding`` hold
    left padding and are seen by nobody; where rows of it are among those that are read now, each sees itself alone:
    what sees nothing is no number, in its keys and values neither. Windows and chunks are counted in positions (slots less padding), not in rows:
    siblings share a position.
    """
    cached = length - offset
    sees = torch.ones((len(tree), cached + len(tree)), dtype=torch.bool)
    sees[:, cached:] = torch.from_numpy(tree.sees)
    hidden = max(padding - offset, 0)
    sees[:, :hidden] = False
    read = torch.arange(hidden - cached) if hidden > cached else torch.arange(0)
    sees[read, cached + read] = True
    sees[len(tree) - tree.pads :] = False
    if span == AttentionSpan():
        return sees
    rows = torch.from_numpy(tree.depths) + (length - padding)
    columns = torch.cat([torch.arange(offset, length) - padding, rows])
    if span.window is not None:
        sees &= rows[:, None] - columns < span.window
    if span.chunk is not None:
        sees &= rows[:, None] // span.chunk == columns // span.chunk
    return sees


def additive(sees: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The same mask for eager attention, which adds it to its scores: 0 where a row may look, or the lowest number."""
    return torch.zeros_like(sees, dtype=dtype).masked_fill_(~sees, torch.finfo(dtype).min)
