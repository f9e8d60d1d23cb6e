"""How much of the exact answer a search finds, on a sample of queries. Knows nothing of how it searches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphon.retrieval.vectors import FlatIndex, Hits, Vectors

DEPTH = 100
"""How many nearest vectors are known of each query."""

Search = Callable[[Vectors, int], list[Hits]]


@dataclass(frozen=True, slots=True)
class GroundTruth:
    """Queries of shape (n, dim), and the rows that are truly nearest to each, best first.

    ``own`` is the row of a query that is one of the vectors searched, else -1: it is left out of its own results.
    """

    queries: Vectors
    own: NDArray[np.int64]
    nearest: tuple[NDArray[np.int64], ...]

    def recall(self, search: Search, k: int) -> float:
        """The share of the true ``k`` nearest that ``search`` finds in its first ``k``: a mean over the queries."""
        return self.recalls(search, k)[0]

    def recalls(self, search: Search, *depths: int) -> list[float]:
        """The recall at each of these depths, all in one search of `DEPTH`."""
        hits = search(self.queries, DEPTH + 1)
        rows = [_others(hit.rows, own) for hit, own in zip(hits, self.own, strict=True)]
        return [_recall(rows, self.nearest, k) for k in depths]

    def halves(self) -> tuple[GroundTruth, GroundTruth]:
        """Every second query, and the others."""
        return self._some(slice(0, None, 2)), self._some(slice(1, None, 2))

    def _some(self, which: slice) -> GroundTruth:
        return GroundTruth(self.queries[which], self.own[which], self.nearest[which])


def ground_truth(
    vectors: Vectors, count: int, *, queries: Vectors | None = None, seed: int = 0, faiss: bool = True
) -> GroundTruth:
    """``count`` of the vectors as queries, or those that are given instead; exact search says what they should find.

    Vectors of the corpus lie nearer to their neighbours than questions do: recall measured with them is a little high.
    """
    own = np.full(0 if queries is None else len(queries), -1, np.int64)
    if queries is None:
        own = np.sort(np.random.default_rng(seed).choice(len(vectors), min(count, len(vectors)), replace=False))
        queries = np.ascontiguousarray(vectors[own])
    hits = FlatIndex(vectors, faiss=faiss, are_normalized=True).search(queries, DEPTH + 1)
    nearest = tuple(_others(hit.rows, row) for hit, row in zip(hits, own, strict=True))
    return GroundTruth(queries, own, nearest)


def _others(rows: NDArray[np.int64], own: np.int64) -> NDArray[np.int64]:
    others: NDArray[np.int64] = rows[rows != own][:DEPTH]
    return others


def _recall(found: Sequence[NDArray[np.int64]], nearest: Sequence[NDArray[np.int64]], k: int) -> float:
    shares = [
        np.isin(true[:k], rows[:k]).sum() / len(true[:k])
        for rows, true in zip(found, nearest, strict=True)
        if len(true)
    ]
    return float(np.mean(shares)) if shares else 1.0
