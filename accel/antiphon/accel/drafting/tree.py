"""Geometry of a draft: in which order its rows stand, how deep each is, who sees whom.

Knows nothing of models; masks are its only tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from antiphon.accel.drafting.draft import ROOT, Draft, select


@dataclass(frozen=True, slots=True)
class Reach:
    """How far back a kind of attention layer looks, in positions: everywhere, a sliding window, or its own chunk."""

    window: int | None = None
    chunk: int | None = None


@dataclass(frozen=True, slots=True)
class Tree:
    """The rows of one forward: first the pending tokens, a chain that ends in the root, then the draft below it.

    ``depths[i]`` counts from 0 at the first pending token; a row's position is the number of tokens before the
    first pending one plus its depth. ``sees[i, j]`` is true where row ``j`` is row ``i`` or one of its ancestors.
    Shapes are (rows,) and (rows, rows). The last ``pads`` rows only fill the forward: they see nothing, and stand at
    the root's depth, where no position is out of range.
    """

    depths: NDArray[np.int64]
    sees: NDArray[np.bool_]
    pads: int = 0

    def __len__(self) -> int:
        return len(self.depths)


def plant(pending: int, parents: Sequence[int], pads: int = 0) -> Tree:
    """The tree of ``pending`` confirmed tokens, the draft rows that hang from the last of them, and ``pads`` rows."""
    root = pending - 1
    above = [ROOT, *range(root), *(root if parent == ROOT else pending + parent for parent in parents)]
    depths: list[int] = []
    seen: list[int] = []  # as bit sets: one integer per row is far cheaper than a Python loop over pairs
    for row, parent in enumerate(above):
        depths.append(0 if parent == ROOT else depths[parent] + 1)
        seen.append((0 if parent == ROOT else seen[parent]) | 1 << row)
    depths += [root] * pads
    return Tree(np.array(depths, dtype=np.int64), _unpack(seen + [0] * pads), pads)


def depth_first(draft: Draft) -> Draft:
    """The draft with its candidates in another order: every row is followed by the first below it, and all below that.

    Where drafters name likely rows first, an accepted path then mostly stands side by side behind the root, and its
    keys and values need not be moved.
    """
    below: list[list[int]] = [[] for _ in range(draft.candidates + 1)]  # the last are the root's
    for row in range(draft.candidates - 1, -1, -1):
        below[draft.parents[row]].append(row)
    order: list[int] = []
    waiting = below[ROOT]
    while waiting:
        row = waiting.pop()
        order.append(row)
        waiting += below[row]
    order += range(draft.candidates, len(draft))
    return draft if order == list(range(len(draft))) else select(draft, order)


def mask(tree: Tree, reach: Reach, *, length: int, offset: int = 0, padding: int = 0) -> torch.Tensor:
    """Who sees what in one kind of layer, as booleans of shape (rows, length - offset + rows).

    Columns are the cached slots ``offset`` to ``length - 1``, then the rows themselves. Slots below ``padding`` hold
    left padding and are seen by nobody. Windows and chunks are counted in positions (slots less padding), not in rows:
    siblings share a position.
    """
    cached = length - offset
    sees = torch.ones((len(tree), cached + len(tree)), dtype=torch.bool)
    sees[:, : max(padding - offset, 0)] = False
    sees[:, cached:] = torch.from_numpy(tree.sees)
    sees[len(tree) - tree.pads :] = False
    if reach == Reach():
        return sees
    rows = torch.from_numpy(tree.depths) + (length - padding)
    columns = torch.cat([torch.arange(offset, length) - padding, rows])
    if reach.window is not None:
        sees &= rows[:, None] - columns < reach.window
    if reach.chunk is not None:
        sees &= rows[:, None] // reach.chunk == columns // reach.chunk
    return sees


def additive(sees: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The same mask for eager attention, which adds it to its scores: 0 where a row may look, or the lowest number."""
    return torch.zeros_like(sees, dtype=dtype).masked_fill_(~sees, torch.finfo(dtype).min)


def _unpack(seen: list[int]) -> NDArray[np.bool_]:
    width = (len(seen) + 7) // 8
    packed = np.frombuffer(b"".join(bits.to_bytes(width, "little") for bits in seen), dtype=np.uint8)
    return np.unpackbits(packed.reshape(len(seen), width), axis=1, count=len(seen), bitorder="little").view(np.bool_)
