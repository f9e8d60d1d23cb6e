"""Approximate search by a trained FAISS index, whose best candidates are scored again. Knows nothing of training."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.retrieval._faiss import OnGpu, import_faiss
from antiphon.retrieval.description import Description
from antiphon.retrieval.generation import IndexCorrupt, IndexMismatch
from antiphon.retrieval.vectors import (
    Allowed,
    Hits,
    Rows,
    Vectors,
    checked_k,
    exact_among,
    normalized,
    top_k,
    without_padding,
)

_BLOCK = 65_536
_FEWEST_HITS = 100  # a small k re-scores as many candidates as k = 100 would, so that few hits are as good as many
_GPU_DEPTH = 2048  # more hits FAISS does not give there


class FaissIndex:
    """A trained FAISS index over ``vectors``, which are read only to score the best hits again.

    Searches share nothing that they change: threads may search at once.

    Raises:
        ImportError: FAISS is not installed, or two packages of it are.
        RuntimeError: a GPU is asked for and there is none, or FAISS has no version of this index for one.
    """

    def __init__(self, index: Any, vectors: Rows, description: Description, *, gpu: bool = False) -> None:
        self.vectors = vectors
        self.description = description
        self._index = index
        self._gpu = OnGpu(index) if gpu else None

    @property
    def dim(self) -> int:
        """How many numbers a vector has."""
        return int(self._index.d)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def search(self, queries: Vectors, k: int, allowed: Allowed | None = None) -> list[Hits]:
        """About the ``k`` best rows for each query, best first; fewer where the lists that were looked into hold fewer.

        Scores are cosines where the best are scored again, and FAISS's estimates of them elsewhere. Where few rows are
        allowed the search is exact.
        """
        k = checked_k(k, len(self))
        queries = normalized(queries, dim=self.dim)
        if allowed is None and not len(self):
            allowed = np.zeros(0, np.bool_)  # FAISS wants to find at least one
        if allowed is not None and np.count_nonzero(allowed) <= self.description.exact_rows:
            return exact_among(self.vectors, queries, np.flatnonzero(allowed), k)
        if not self.description.rescored:
            return self._estimated(queries, k, allowed)
        rough = self._estimated(queries, min(max(k, _FEWEST_HITS) * self.description.rescored, len(self)), allowed)
        return [self._rescored(query, hits.rows, k) for query, hits in zip(queries, rough, strict=True)]

    def described(self, description: Description) -> FaissIndex:
        """The same index, searched as another description says."""
        other = copy(self)
        other.description = description
        return other

    def save(self, path: Path) -> None:
        """Write the FAISS index; the vectors are not in it.

        Raises:
            OSError: it cannot be written. FAISS's own files miss what goes wrong when they are closed.
        """
        faiss = import_faiss()
        with path.open("wb") as file:
            faiss.write_index(self._index, faiss.PyCallbackIOWriter(file.write, 1 << 20))

    def refilled(self, vectors: Vectors) -> FaissIndex:
        """An index of other vectors by what was learned from these; nothing is trained."""
        faiss = import_faiss()
        index = faiss.clone_index(self._index)
        index.reset()
        for first in range(0, len(vectors), _BLOCK):
            index.add(vectors[first : first + _BLOCK])
        return FaissIndex(index, vectors, replace(self.description, vectors=len(vectors)))

    def _estimated(self, queries: Vectors, k: int, allowed: Allowed | None) -> list[Hits]:
        params = search_parameters(self._index, self.description.probes, allowed)
        if self._gpu is None or allowed is not None:  # on a GPU FAISS knows no filter
            scores, rows = self._index.search(queries, k, params=params)
        else:
            scores, rows = self._gpu.search(queries, min(k, _GPU_DEPTH), params=params)
        return [without_padding(row, score) for row, score in zip(rows, scores, strict=True)]

    def _rescored(self, query: Vectors, rows: NDArray[np.int64], k: int) -> Hits:
        if not len(rows):
            return Hits(rows, np.zeros(0, np.float32))
        rows = np.sort(rows)  # a file is read forwards
        return top_k(rows, self.vectors[rows].astype(np.float32) @ query, k)


def load_faiss(path: Path, vectors: Rows, description: Description, *, gpu: bool = False) -> FaissIndex:
    """What `FaissIndex.save` wrote, over the vectors that it was trained for.

    Raises:
        IndexMismatch: this version of FAISS does not read it.
        IndexCorrupt: it holds other vectors than these.
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
    return FaissIndex(index, vectors, description, gpu=gpu)


def search_parameters(index: Any, probes: int | None, allowed: Allowed | None = None) -> Any:
    """FAISS's parameters of one search, for an index that may stand behind a rotation or a refinement; None for none.

    They are handed over with each call: to set them on the index would change the searches of other threads.
    """
    faiss = import_faiss()
    if probes is None and allowed is None:
        return None
    if isinstance(index, faiss.IndexPreTransform):
        inner = search_parameters(faiss.downcast_index(index.index), probes, allowed)
        return faiss.SearchParametersPreTransform(index_params=inner)
    if isinstance(index, faiss.IndexRefine):
        inner = search_parameters(faiss.downcast_index(index.base_index), probes, allowed)
        return faiss.IndexRefineSearchParameters(base_index_params=inner, k_factor=index.k_factor)
    chosen = {} if allowed is None else {"sel": faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))}
    if probes is not None:
        return faiss.SearchParametersIVF(nprobe=probes, **chosen)
    kind = faiss.SearchParametersHNSW if isinstance(index, faiss.IndexHNSW) else faiss.SearchParameters
    return kind(**chosen)


def inverted_lists(index: Any) -> Any | None:
    """The inverted file in a FAISS index, wherever it stands, or None."""
    faiss = import_faiss()
    inside = faiss.try_extract_index_ivf(index)
    return None if inside is None else faiss.downcast_index(inside)
