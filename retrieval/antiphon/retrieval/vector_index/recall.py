"""Measure recall: the share of the exact nearest vectors that an approximate search finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphon.retrieval.vector_index.flat import FlatIndex, Hits, Vectors

DEPTH = 100
"""The number of exact nearest vectors per query."""

Search = Callable[[Vectors, int], list[Hits]]


@dataclass(frozen=True, slots=True)
class GroundTruth:
    """Queries, and the rows that exact search finds for each query.

    Attributes:
        queries: Of shape (n, dim).
        own: Of shape (n,): the query's own row if the query is one of the searched vectors, else -1. That row is
            excluded from the query's results.
        nearest: For each query, the nearest rows, best first.
    """

    queries: Vectors
    own: NDArray[np.int64]
    nearest: tuple[NDArray[np.int64], ...]

    def recalls(self, search: Search, *depths: int) -> list[float]:
        """Return the recall at each of several depths ``k`` (at most `DEPTH`), computed with one search.

        Recall is the mean share of the exact ``k`` nearest rows among the first ``k`` results.

        Args:
            search: Function that takes queries of shape (n, dim) and the number of hits.
        """
        hits = search(self.queries, DEPTH + 1)
        rows = [_others(hit.rows, own) for hit, own in zip(hits, self.own, strict=True)]
        return [_recall(rows, self.nearest, k) for k in depths]

    def halves(self) -> tuple[GroundTruth, GroundTruth]:
        """Split the queries into two halves: queries with even and with odd indices."""
        return self._some(slice(0, None, 2)), self._some(slice(1, None, 2))

    def _some(self, which: slice) -> GroundTruth:
        return GroundTruth(self.queries[which], self.own[which], self.nearest[which])


def ground_truth(vectors: Vectors, count: int, *, queries: Vectors | None = None, seed: int = 0) -> GroundTruth:
    """Return queries with their exact results.

    Without ``queries``, vectors of the corpus serve as queries. They are closer to their neighbours
    than real questions are, so the measured recall is slightly too high.

    Args:
        vectors: The searched vectors, of shape (n, dim) and length 1.
        count: How many of the vectors to use as queries if ``queries`` is None.
        queries: Real questions, of shape (m, dim).
    """
    own = np.full(0 if queries is None else len(queries), -1, np.int64)
    if queries is None:
        own = np.sort(np.random.default_rng(seed).choice(len(vectors), min(count, len(vectors)), replace=False))
        queries = np.ascontiguousarray(vectors[own])
    hits = FlatIndex(vectors, are_normalized=True).search(queries, DEPTH + 1)
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
