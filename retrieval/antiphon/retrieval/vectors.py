"""Vectors, and the exact search for the nearest by inner product. Knows nothing of passages, files or training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from antiphon.retrieval._faiss import OnGpu, flat, import_faiss

Vectors = NDArray[np.float32]
"""Float32 vectors, of shape (n, dim)."""

Rows = Vectors | NDArray[np.float16]
"""Vectors of shape (n, dim), of length 1; in memory or in a memory-mapped file."""

Allowed = NDArray[np.bool_]
"""Which rows may be found."""

NUMPY_LIMIT = 50_000
"""The largest number of vectors that are searched without FAISS."""

_BLOCK = 16_384


@dataclass(frozen=True, slots=True)
class Hits:
    """The rows nearest to one query, best first, and their inner products; both of shape (found,)."""

    rows: NDArray[np.int64]
    scores: Vectors


class VectorIndex(Protocol):
    """Vectors that can be searched; row ``i`` is the ``i``-th vector of those it was made from."""

    @property
    def dim(self) -> int:
        """How many numbers a vector has."""

    def __len__(self) -> int:
        """How many vectors there are."""

    def search(self, queries: Vectors, k: int, allowed: Allowed | None = None) -> list[Hits]:
        """The ``k`` best rows for each of ``queries``, of shape (n, dim); all of them if there are fewer.

        With ``allowed``, of shape (vectors,), they are the best of the rows that it says yes to.
        """


class FlatIndex:
    """Exact search: in numpy up to 50,000 vectors, where equal scores keep the order of rows; by FAISS above.

    The vectors are searched where they lie, in memory or in a memory-mapped file. They are checked and normalized first
    unless ``are_normalized`` says that they are already. ``faiss`` forces (True) or forbids (False) FAISS.

    Raises:
        ImportError: FAISS is needed and not installed, or two packages of it are; says the command.
        RuntimeError: a GPU is asked for and FAISS finds none.
    """

    def __init__(
        self, vectors: Vectors, *, faiss: bool | None = None, gpu: bool = False, are_normalized: bool = False
    ) -> None:
        self.vectors = vectors if are_normalized else normalized(vectors)
        by_faiss = gpu or (len(vectors) > NUMPY_LIMIT if faiss is None else faiss)
        if not by_faiss and len(vectors) > NUMPY_LIMIT:
            raise ValueError(f"{len(vectors)} vectors are too many for numpy (at most {NUMPY_LIMIT}); use FAISS.")
        self._faiss: Any = import_faiss() if by_faiss else None
        self._gpu: OnGpu | None = OnGpu(flat(self.vectors)) if gpu else None

    @property
    def dim(self) -> int:
        """How many numbers a vector has."""
        return int(self.vectors.shape[1])

    def __len__(self) -> int:
        return len(self.vectors)

    def search(self, queries: Vectors, k: int, allowed: Allowed | None = None) -> list[Hits]:
        """The ``k`` best rows for each query, best first."""
        k = checked_k(k, len(self))
        queries = normalized(queries, dim=self.dim)
        if allowed is not None:
            return exact_among(self.vectors, queries, np.flatnonzero(allowed), k)
        if self._faiss is None:
            return [top_k(np.arange(len(self)), row, k) for row in queries @ self.vectors.T]
        if self._gpu is not None:
            scores, rows = self._gpu.search(queries, k)
        else:
            scores, rows = self._faiss.knn(queries, self.vectors, k, metric=self._faiss.METRIC_INNER_PRODUCT)
        return [without_padding(row, score) for row, score in zip(rows, scores, strict=True)]


def exact_among(vectors: Rows, queries: Vectors, rows: NDArray[np.int64], k: int) -> list[Hits]:
    """The ``k`` best of these rows, which rise, for each query: every one of them is scored."""
    hits = [Hits(rows[:0], np.zeros(0, np.float32)) for _ in queries]
    for first in range(0, len(rows), _BLOCK):
        block = rows[first : first + _BLOCK]
        scores = queries @ vectors[block].astype(np.float32).T
        hits = [
            top_k(np.concatenate([hit.rows, block]), np.concatenate([hit.scores, new]), k)
            for hit, new in zip(hits, scores, strict=True)
        ]
    return hits


def normalized(vectors: Any, *, dim: int | None = None) -> Vectors:
    """The vectors as float32, each of length 1.

    Raises:
        TypeError: they are not an array of floats.
        ValueError: not of shape (n, dim), or a row is zero, infinite or not a number; names the first such row.
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
    """The ``k`` best of these rows by their scores; equal scores by their rows."""
    kept = np.arange(len(scores)) if k >= len(scores) else np.argpartition(-scores, k - 1)[:k]
    order = kept[np.lexsort((rows[kept], -scores[kept]))]
    return Hits(rows[order].astype(np.int64), scores[order])


def without_padding(rows: NDArray[np.int64], scores: Vectors) -> Hits:
    """The hits of one query, without the rows -1 that FAISS returns where it found fewer than were asked for."""
    keep = rows >= 0
    return Hits(rows[keep], scores[keep])


def checked_k(k: int, count: int) -> int:
    """How many of ``count`` rows to look for.

    Raises:
        ValueError: ``k`` is no whole number from 1.
    """
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ValueError(f"k is {k!r}; the number of hits is a whole number from 1.")
    return min(k, count)
