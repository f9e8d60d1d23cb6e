"""Exact search for the nearest vectors by inner product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
"""Float32 vectors of shape (n, dim)."""

StoredVectors = Vectors | NDArray[np.float16]
"""Unit vectors of shape (n, dim), in memory or in a memory-mapped file."""

RowMask = NDArray[np.bool_]
"""A mask of shape (n,): True for the rows that a search may return."""

_BLOCK = 16_384


@dataclass(frozen=True, slots=True)
class Hits:
    """The nearest rows of one query, best first, and their inner products; both of shape (hits,)."""

    rows: NDArray[np.int64]
    scores: Vectors


class FlatIndex:
    """Exact search in numpy. Hits with equal scores are sorted by row (the vector's index).

    Args:
        vectors: Of shape (n, dim), in memory or memory-mapped; copied only if they have to be normalized.
        are_normalized: Whether the vectors are known to have length 1, so that they need no check.
    """

    def __init__(self, vectors: Vectors, *, are_normalized: bool = False) -> None:
        self.vectors = vectors if are_normalized else normalized(vectors)

    @property
    def dim(self) -> int:
        """The dimension of the vectors."""
        return int(self.vectors.shape[1])

    def __len__(self) -> int:
        return len(self.vectors)

    def search(self, queries: Vectors, k: int, allowed: RowMask | None = None) -> list[Hits]:
        """Return the ``k`` best rows for each query, best first; all rows if there are fewer.

        Args:
            queries: Of shape (queries, dim).
            k: Number of rows to return, at least 1.
            allowed: Of shape (vectors,): only these rows are searched. None: all.
        """
        k = check_k(k, len(self))
        queries = normalized(queries, dim=self.dim)
        rows = np.arange(len(self)) if allowed is None else np.flatnonzero(allowed)
        return search_rows(self.vectors, queries, rows, k)


def search_rows(vectors: StoredVectors, queries: Vectors, rows: NDArray[np.int64], k: int) -> list[Hits]:
    """Score every given row, and return the ``k`` best for each query.

    Args:
        vectors: Of shape (n, dim).
        queries: Of shape (queries, dim).
        rows: The rows to score, in increasing order.
    """
    hits = [Hits(rows[:0], np.zeros(0, np.float32)) for _ in queries]
    for first in range(0, len(rows), _BLOCK):
        block = rows[first : first + _BLOCK]
        start, stop = int(block[0]), int(block[-1]) + 1
        found = vectors[start:stop] if stop - start == len(block) else vectors[block]  # a slice is no copy
        scores = queries @ found.astype(np.float32, copy=False).T
        hits = [
            top_k(np.concatenate([hit.rows, block]), np.concatenate([hit.scores, new]), k)
            for hit, new in zip(hits, scores, strict=True)
        ]
    return hits


def normalized(vectors: Any, *, dim: int | None = None) -> Vectors:
    """Return the vectors as contiguous float32, scaled to length 1.

    Args:
        vectors: An array of floats, of shape (n, dim).
        dim: The dimension that the vectors must have. None: any.

    Raises:
        TypeError: The vectors are not an array of floats.
        ValueError: The vectors have another shape, or a row is zero or not finite. The message
            names the first such row.
    """
    if not isinstance(vectors, np.ndarray) or vectors.dtype.kind != "f":
        kind = vectors.dtype if isinstance(vectors, np.ndarray) else type(vectors).__name__
        raise TypeError(f"vectors are {kind}; a numpy array of floats is needed.")
    if vectors.ndim != 2 or not vectors.shape[1] or (dim is not None and vectors.shape[1] != dim):
        raise ValueError(f"vectors have shape {vectors.shape}; (n, {dim or 'dim'}) is needed.")
    wide = vectors.astype(np.float32, copy=False)
    lengths = np.sqrt(np.einsum("nd,nd->n", wide, wide, dtype=np.float64))
    bad = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))
    if len(bad):
        length = "of length 0" if lengths[bad[0]] == 0 else "infinite or not a number"
        raise ValueError(f"Vector {bad[0]} is {length}; {len(bad)} of {len(vectors)} are such.")
    if np.all(np.abs(lengths - 1) < 1e-6):
        return np.ascontiguousarray(wide)
    return np.ascontiguousarray(wide / lengths[:, None].astype(np.float32))


def top_k(rows: NDArray[np.int64], scores: Vectors, k: int) -> Hits:
    """Return the ``k`` rows with the highest scores; equal scores are sorted by row.

    Args:
        rows: Of shape (n,).
        scores: Of shape (n,).
    """
    kept = np.arange(len(scores)) if k >= len(scores) else np.argpartition(-scores, k - 1)[:k]
    order = kept[np.lexsort((rows[kept], -scores[kept]))]
    return Hits(rows[order].astype(np.int64), scores[order])


def drop_padding(rows: NDArray[np.int64], scores: Vectors) -> Hits:
    """Return the hits of one query. Missing hits, for which FAISS gives row -1, are removed.

    Args:
        rows: Of shape (k,).
        scores: Of shape (k,).
    """
    keep = rows >= 0
    return Hits(rows[keep], scores[keep])


def check_k(k: int, count: int) -> int:
    """Return ``k``, or ``count`` if that is less.

    Raises:
        ValueError: ``k`` is not an integer from 1.
    """
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ValueError(f"k is {k!r}; the number of hits is a whole number from 1.")
    return min(k, count)
