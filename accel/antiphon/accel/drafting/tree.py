"""Geometry of a draft: in which order its rows stand, how deep each is, which rows see which. Knows no models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphon.accel.drafting.draft import ROOT, Draft, select


@dataclass(frozen=True, slots=True)
class AttentionSpan:
    """How far back a kind of attention layer looks, in positions: to the start, a sliding window, or its own chunk."""

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


def select_depth_first(draft: Draft, kept: Sequence[int]) -> Draft:
    """Only these rows (ascending), with every candidate followed by the first one below it, and all below that.

    Drafters name likely rows first, so an accepted path then mostly stands side by side behind the root, and its keys
    and values need not be moved. Probes stay behind the candidates, in their order.
    """
    candidates, parents = draft.candidates, draft.parents
    below: dict[int, list[int]] = {}
    probes: list[int] = []
    for row in reversed(kept):
        if row < candidates:
            below.setdefault(parents[row], []).append(row)
        else:
            probes.insert(0, row)
    order: list[int] = []
    waiting = below.get(ROOT, [])
    while waiting:
        row = waiting.pop()
        order.append(row)
        if row in below:
            waiting += below[row]
    order += probes
    return draft if order == list(range(len(draft))) else select(draft, order)


def depth_first(draft: Draft) -> Draft:
    """The whole draft in the order of `select_depth_first`."""
    return select_depth_first(draft, range(len(draft)))


def _unpack(seen: list[int]) -> NDArray[np.bool_]:
    width = (len(seen) + 7) // 8
    packed = np.frombuffer(b"".join(bits.to_bytes(width, "little") for bits in seen), dtype=np.uint8)
    return np.unpackbits(packed.reshape(len(seen), width), axis=1, count=len(seen), bitorder="little").view(np.bool_)
