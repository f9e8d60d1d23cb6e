"""Nearest vectors by inner product: exact in numpy while small, FAISS above. Knows nothing of passages or of files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
"""Float32 vectors, of shape (n, dim)."""

NUMPY_LIMIT = 50_000
"""The largest number of vectors that are searched without FAISS."""


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

    def search(self, queries: Vectors, k: int) -> list[Hits]:
        """The ``k`` best rows for each of ``queries``, of shape (n, dim); all of them if there are fewer."""


class FlatIndex:
    """Exact search in numpy; equal scores keep the order of rows."""

    def __init__(self, vectors: Vectors) -> None:
        if len(vectors) > NUMPY_LIMIT:
            raise ValueError(f"{len(vectors)} vectors are too many for numpy (at most {NUMPY_LIMIT}); use FaissIndex.")
        self._vectors = normalized(vectors)

    @property
    def dim(self) -> int:
        """How many numbers a vector has."""
        return int(self._vectors.shape[1])

    def __len__(self) -> int:
        return len(self._vectors)

    def search(self, queries: Vectors, k: int) -> list[Hits]:
        """The ``k`` best rows for each query, best first."""
        k = _checked_k(k, len(self))
        scores = normalized(queries, dim=self.dim) @ self._vectors.T
        return [_best(row, k) for row in scores]


class FaissIndex:
    """Exact search in FAISS (``IndexFlatIP``).

    Raises:
        ImportError: FAISS is not installed, or two packages of it are.
    """

    def __init__(self, vectors: Vectors) -> None:
        from antiphon.retrieval._faiss import import_faiss

        checked = normalized(vectors)
        self._index: Any = import_faiss().IndexFlatIP(checked.shape[1])
        self._index.add(checked)

    @property
    def dim(self) -> int:
        """How many numbers a vector has."""
        return int(self._index.d)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def search(self, queries: Vectors, k: int) -> list[Hits]:
        """The ``k`` best rows for each query, best first."""
        scores, rows = self._index.search(normalized(queries, dim=self.dim), _checked_k(k, len(self)))
        return [_found(row, score) for row, score in zip(rows, scores, strict=True)]


def vector_index(vectors: Vectors) -> VectorIndex:
    """The index that suits the number of vectors: numpy up to 50,000, FAISS above.

    Raises:
        ImportError: there are more vectors than numpy should search, and FAISS is not installed.
    """
    require_room(len(vectors))
    return FlatIndex(vectors) if len(vectors) <= NUMPY_LIMIT else FaissIndex(vectors)


def require_room(count: int) -> None:
    """Refuse more vectors than can be searched with what is installed.

    Raises:
        ImportError: ``count`` is over 50,000 and FAISS is not installed; says the command.
    """
    if count <= NUMPY_LIMIT:
        return
    from antiphon.retrieval._faiss import import_faiss

    try:
        import_faiss()
    except ImportError as error:
        raise ImportError(f"{count} passages need FAISS (without it at most {NUMPY_LIMIT}). {error}") from error


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


def _best(scores: Vectors, k: int) -> Hits:
    rows = np.arange(len(scores)) if k >= len(scores) else np.argpartition(-scores, k - 1)[:k]
    order = np.lexsort((rows, -scores[rows]))
    return Hits(rows[order].astype(np.int64), scores[rows[order]])


def _found(rows: NDArray[np.int64], scores: Vectors) -> Hits:
    """Without the rows -1 with which FAISS fills up where it found fewer."""
    keep = rows >= 0
    return Hits(rows[keep], scores[keep])


def _checked_k(k: int, count: int) -> int:
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ValueError(f"k is {k!r}; the number of hits is a whole number from 1.")
    return min(k, count)
