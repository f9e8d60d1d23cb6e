"""Approximate search with a trained FAISS index; the best candidates are rescored with their stored vectors."""

from __future__ import annotations

import os
import sys
from copy import copy
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.retrieval.errors import IndexCorrupt, IndexMismatch
from antiphon.retrieval.vector_index.description import IndexDescription
from antiphon.retrieval.vector_index.flat import (
    Hits,
    RowMask,
    StoredVectors,
    Vectors,
    check_k,
    drop_padding,
    normalized,
    search_rows,
    top_k,
)
from antiphon.retrieval.vector_index.settings import EXACT_ROWS


def import_faiss() -> ModuleType:
    """Return the ``faiss`` module."""
    if sys.platform == "darwin":
        # Both wheels ship a libomp, and loading the second one would abort the process.
        os.environ.setdefault("KMP_DUPLICATE_LIB_OK", "TRUE")
    import faiss
    import torch  # noqa: F401  # before faiss, so that both share torch's thread pool

    if sys.platform == "darwin":
        faiss.omp_set_num_threads(1)
    module: ModuleType = faiss
    return module


_BLOCK = 65_536
_FEWEST_HITS = 100  # for a smaller k, as many candidates are rescored as for this k, so that recall is as good


class FaissIndex:
    """A trained FAISS index. Several threads may search it at once.

    Args:
        vectors: The indexed vectors, of shape (n, dim). They are read only to rescore the best
            hits.
    """

    def __init__(self, index: Any, vectors: StoredVectors, description: IndexDescription) -> None:
        self.vectors = vectors
        self.description = description
        self._index = index

    @property
    def dim(self) -> int:
        """The dimension of the vectors."""
        return int(self._index.d)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def search(self, queries: Vectors, k: int, allowed: RowMask | None = None) -> list[Hits]:
        """Return the approximately best ``k`` rows for each query; fewer if the probed lists contain fewer.

        Scores are cosines if candidates are rescored, else FAISS's estimates of cosines. If few rows are allowed, the
        search is exact. See `FlatIndex.search`.
        """
        k = check_k(k, len(self))
        queries = normalized(queries, dim=self.dim)
        if allowed is None and not len(self):
            allowed = np.zeros(0, np.bool_)  # FAISS cannot search for zero hits
        if allowed is not None and np.count_nonzero(allowed) <= EXACT_ROWS:
            return search_rows(self.vectors, queries, np.flatnonzero(allowed), k)
        if not self.description.rescored:
            return self._estimated(queries, k, allowed)
        rough = self._estimated(queries, min(max(k, _FEWEST_HITS) * self.description.rescored, len(self)), allowed)
        return [self._rescored(query, hits.rows, k) for query, hits in zip(queries, rough, strict=True)]

    def with_description(self, description: IndexDescription) -> FaissIndex:
        """Return the same index with another description. The description determines how the index is searched."""
        other = copy(self)
        other.description = description
        return other

    def save(self, path: Path) -> None:
        """Write the FAISS index, without the vectors.

        Python writes the file, because FAISS's own writer misses errors on close.

        Raises:
            OSError: The file cannot be written.
        """
        faiss = import_faiss()
        with path.open("wb") as file:
            faiss.write_index(self._index, faiss.PyCallbackIOWriter(file.write, 1 << 20))

    def refilled(self, vectors: Vectors) -> FaissIndex:
        """Return an index of other vectors that reuses this index's training."""
        faiss = import_faiss()
        index = faiss.clone_index(self._index)
        index.reset()
        for first in range(0, len(vectors), _BLOCK):
            index.add(vectors[first : first + _BLOCK])
        return FaissIndex(index, vectors, replace(self.description, vectors=len(vectors)))

    def _estimated(self, queries: Vectors, k: int, allowed: RowMask | None) -> list[Hits]:
        params = search_parameters(self._index, self.description.probes, allowed)
        scores, rows = self._index.search(queries, k, params=params)
        return [drop_padding(row, score) for row, score in zip(rows, scores, strict=True)]

    def _rescored(self, query: Vectors, rows: NDArray[np.int64], k: int) -> Hits:
        if not len(rows):
            return Hits(rows, np.zeros(0, np.float32))
        rows = np.sort(rows)  # in file order, because the vectors may be memory-mapped
        return top_k(rows, self.vectors[rows].astype(np.float32) @ query, k)


def read_faiss_index(path: Path, vectors: StoredVectors, description: IndexDescription) -> FaissIndex:
    """Read the file of `FaissIndex.save` for the given vectors.

    Raises:
        IndexMismatch: The installed version of FAISS cannot read the file.
        IndexCorrupt: The number or the dimension of the vectors differs.
    """
    faiss = import_faiss()
    try:
        index = faiss.read_index(str(path))
    except RuntimeError as error:
        raise IndexMismatch(
            f"{path} was written by FAISS {description.faiss}, and FAISS {faiss.__version__} cannot read it: {error}"
        ) from error
    if (index.ntotal, index.d) != vectors.shape:
        raise IndexCorrupt(
            f"The index is damaged: {path} has {index.ntotal} vectors of {index.d} numbers, not {vectors.shape}. "
            "Make it again."
        )
    return FaissIndex(index, vectors, description)


def search_parameters(index: Any, probes: int, allowed: RowMask | None = None) -> Any:
    """Return FAISS's parameters for one search.

    Parameters are passed with each call, because setting them on the index would affect other threads.

    Args:
        index: An inverted-file index (IVF), possibly with a rotation before it.
        probes: The number of lists to search.
        allowed: Of shape (n,): the rows that may be found. None: all.
    """
    faiss = import_faiss()
    chosen = {} if allowed is None else {"sel": faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))}
    inner = faiss.SearchParametersIVF(nprobe=probes, **chosen)
    is_rotated = isinstance(index, faiss.IndexPreTransform)
    return faiss.SearchParametersPreTransform(index_params=inner) if is_rotated else inner
