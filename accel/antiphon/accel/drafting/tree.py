"""Compute the order, the depths and the ancestor mask of a draft tree's rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphon.accel.drafting.draft import ROOT, Draft, take_rows


@dataclass(frozen=True, slots=True)
class AttentionSpan:
    """How far back an attention layer looks. Without limits, the layer attends to the whole sequence.

    Attributes:
        window: Size of a sliding window, in positions.
        chunk: Size of the fixed chunks that attention cannot leave, in positions.
    """

    window: int | None = None
    chunk: int | None = None


@dataclass(frozen=True, slots=True)
class Tree:
    """The rows of one forward pass: the pending tokens (a chain that ends in the root), then the draft below the root.

    Attributes:
        depths: Depth of each row, shape (rows,). The first pending token has depth 0. The position of a row is its
            depth plus the number of tokens before the first pending token.
        ancestor_mask: Shape (rows, rows). Entry [i, j] is true if row j is row i or one of its ancestors.
        padding_rows: Number of padding rows at the end. In ``ancestor_mask`` they attend to nothing. They have the
            root's depth, so their position is always valid.
    """

    depths: NDArray[np.int64]
    ancestor_mask: NDArray[np.bool_]
    padding_rows: int = 0

    def __len__(self) -> int:
        return len(self.depths)


def build_tree(pending: int, parents: Sequence[int], padding_rows: int = 0) -> Tree:
    """Return the tree of the pending tokens and the draft below the last pending token.

    Args:
        pending: Number of pending tokens, at least 1.
        parents: Parent of each draft row: an earlier draft row, or ``ROOT`` for the last pending token.
    """
    root = pending - 1
    above = [ROOT, *range(root), *(root if parent == ROOT else pending + parent for parent in parents)]
    depths: list[int] = []
    ancestors: list[int] = []  # bit sets: one integer per row is far cheaper than a Python loop over pairs of rows
    for row, parent in enumerate(above):
        depths.append(0 if parent == ROOT else depths[parent] + 1)
        ancestors.append((0 if parent == ROOT else ancestors[parent]) | 1 << row)
    depths += [root] * padding_rows
    return Tree(np.array(depths, dtype=np.int64), _unpack_bits(ancestors + [0] * padding_rows), padding_rows)


def input_windows(ancestor_mask: NDArray[np.bool_], size: int) -> NDArray[np.int64]:
    """Return, for each row, the indices of the last ``size`` inputs on the path to the row; shape (rows, size).

    Indices 0 to ``size`` - 1 are the inputs before the rows; the rows follow.

    Args:
        ancestor_mask: As in `Tree`, without padding rows.
    """
    paths = ([*range(size), *(size + row.nonzero()[0])][-size:] for row in ancestor_mask)
    return np.array(list(paths), dtype=np.int64)


def take_rows_depth_first(draft: Draft, kept: Sequence[int]) -> Draft:
    """Return the kept rows in depth-first order: every candidate is followed by its first child's subtree.

    Drafters put likely rows first, so in this order an accepted path is mostly contiguous after the root, and its
    keys and values need not be moved in the KV cache. Probes stay after the candidates, in their order.

    Args:
        kept: Rows to keep, ascending; the parent of each kept row is kept, too.
    """
    candidates, parents = draft.num_candidates, draft.parents
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
    return draft if order == list(range(len(draft))) else take_rows(draft, order)


def reorder_depth_first(draft: Draft) -> Draft:
    """Return the whole draft in the order of `take_rows_depth_first`."""
    return take_rows_depth_first(draft, range(len(draft)))


def _unpack_bits(rows: list[int]) -> NDArray[np.bool_]:
    """Convert bit sets (one integer per row) to a boolean matrix of shape (rows, rows)."""
    width = (len(rows) + 7) // 8
    packed = np.frombuffer(b"".join(bits.to_bytes(width, "little") for bits in rows), dtype=np.uint8)
    return np.unpackbits(packed.reshape(len(rows), width), axis=1, count=len(rows), bitorder="little").view(np.bool_)
