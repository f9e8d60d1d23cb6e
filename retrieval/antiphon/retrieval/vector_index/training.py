"""Train a FAISS index on a sample, add the vectors, and choose the number of probes by its recall."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.retrieval.vector_index.description import IndexDescription
from antiphon.retrieval.vector_index.faiss_index import FaissIndex, import_faiss
from antiphon.retrieval.vector_index.flat import FlatIndex, Hits, Vectors
from antiphon.retrieval.vector_index.settings import IndexSetting

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


TARGET = 0.95
"""The recall at 100 that the number of probes is chosen for."""

SEED = 1
"""The seed of all random numbers, so that the same vectors give the same index."""

_MARGIN = 0.02  # added to the target, because the queries are indexed vectors
_TOLERANCE = 0.005  # if the target cannot be reached, fewer probes may cost this much of the best recall
_SAMPLED = 256
_DOUBLINGS = 2  # of the rescored candidates, at most: 12 * k read 2.4 MB at dimension 1,024 and k = 100
_BLOCK = 65_536
_PER_LIST, _TRAINED = 64, 65_536  # numbers of training vectors: for each inverted list, and at least in total


def train_index(vectors: Vectors, setting: IndexSetting) -> FaissIndex:
    """Train the index of a setting, and choose the fewest probes that reach the recall `TARGET`.

    The result is deterministic. Recall is measured with a sample of the vectors as queries. Their
    neighbours are easier to find than the neighbours of questions, so the target is raised by 0.02.

    Args:
        vectors: Of shape (n, dim) and length 1.
        setting: The setting, not flat.

    Raises:
        ValueError: FAISS needs more vectors for training; the message says how many.
    """
    # 1. Create, train and fill the index.
    index = untrained_index(setting, *vectors.shape)
    trained_on = _train(index, vectors, setting)
    for first in range(0, len(vectors), _BLOCK):
        index.add(vectors[first : first + _BLOCK])
    made = FaissIndex(index, vectors, _describe(index, vectors, setting, trained_on))
    # 2. Choose the number of probes on one half of the queries.
    exact = ground_truth(vectors, _SAMPLED, seed=SEED)
    tuning, held_out = exact.halves() if len(exact.queries) > 1 else (exact, exact)
    if setting.probes is None:
        made = _tuned(made, tuning, TARGET + _MARGIN)
    # 3. Measure the recall on the other half.
    at_10, at_100 = (round(recall, 4) for recall in held_out.recalls(made.search, 10, 100))
    sampled = len(held_out.queries)
    return made.with_description(replace(made.description, recall_10=at_10, recall_100=at_100, sampled=sampled))


def untrained_index(setting: IndexSetting, count: int, dim: int) -> Any:
    """Create the untrained FAISS index of a setting.

    Raises:
        ValueError: FAISS needs more vectors for training.
    """
    faiss = import_faiss()
    index = faiss.index_factory(setting.rotated or dim, setting.factory, faiss.METRIC_INNER_PRODUCT)  # L2 by default
    for trainer in (index, index.pq):
        trainer.cp.min_points_per_centroid = 1  # silences warnings; the number of vectors is checked here
        trainer.cp.seed = SEED
    needed = max(int(index.nlist), int(index.pq.ksub))
    if count < needed:
        raise ValueError(
            f"The setting {setting.name!r} is trained on {needed:,} vectors at least, and there are {count:,}; "
            "use the setting 'auto'."
        )
    if not setting.rotated:
        return index
    return faiss.IndexPreTransform(faiss.LinearTransform(dim, setting.rotated, False), index)


def pca_rotation(vectors: Vectors, dims: int, *, seed: int = 0) -> Vectors:
    """Return a projection onto the principal axes of the vectors, followed by a random rotation.

    The axes are the eigenvectors of the *uncentred* second moment, because subtracting a mean would change the order
    of inner products. The random rotation spreads the variance evenly over all dimensions, and so over all
    sub-vectors of the product quantizer.

    Args:
        vectors: Of shape (n, dim).
        dims: The number of axes to keep.

    Returns:
        A matrix of shape (dims, dim) with orthonormal rows.
    """
    moment = vectors.T @ vectors / np.float32(len(vectors))
    _, axes = np.linalg.eigh(moment.astype(np.float64))  # by increasing eigenvalue
    turn, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((dims, dims)))
    rotation: Vectors = (turn @ axes[:, ::-1][:, :dims].T).astype(np.float32)
    return np.ascontiguousarray(rotation)


def _train(index: Any, vectors: Vectors, setting: IndexSetting) -> int:
    """Train an index on a sample; return the sample's size."""
    wanted = max(_TRAINED, _PER_LIST * setting.lists)
    chosen = vectors
    if wanted < len(vectors):
        chosen = vectors[np.sort(np.random.default_rng(SEED).choice(len(vectors), wanted, replace=False))]
    if setting.rotated:
        faiss = import_faiss()
        linear = faiss.downcast_VectorTransform(index.chain.at(0))
        faiss.copy_array_to_vector(pca_rotation(chosen, setting.rotated, seed=SEED).ravel(), linear.A)
        linear.is_trained = True
    index.train(chosen)
    return len(chosen)


def _tuned(made: FaissIndex, exact: GroundTruth, aim: float) -> FaissIndex:
    """Return the index with the fewest probes (a power of two) whose recall at 100 reaches ``aim``.

    If even a search of all lists does not reach ``aim``, the number of rescored candidates is doubled once or twice,
    which needs no additional memory. If that does not suffice either, the fewest probes with nearly the best recall
    are used.
    """
    rough = made.description
    curve: list[tuple[float, FaissIndex]] = []
    for doublings in range(1 + (_DOUBLINGS if rough.rescored else 0)):
        curve = []
        for probes in _powers_of_two(rough.lists):
            tuned = replace(rough, probes=probes, rescored=rough.rescored << doublings)
            index = made.with_description(tuned)
            recall = round(exact.recalls(index.search, 100)[0], 4)
            curve.append((recall, index))
            if recall >= aim:
                return _explained(index, f"reach a recall@100 of {aim:.2f}", recall)
    least = max(recall for recall, _ in curve) - _TOLERANCE
    recall, index = next(pair for pair in curve if pair[0] >= least)
    return _explained(index, f"come as near as its codes allow to a recall@100 of {aim:.2f}", recall)


def _explained(index: FaissIndex, reached: str, recall: float) -> FaissIndex:
    why = f"the fewest that {reached} on a sample ({recall:.3f})"
    return index.with_description(replace(index.description, probes_why=why))


def _powers_of_two(lists: int) -> list[int]:
    """Return the powers of two that are less than ``lists``, and then ``lists``."""
    return [*(2**power for power in range(lists.bit_length()) if 2**power < lists), lists]


def _describe(index: Any, vectors: Vectors, setting: IndexSetting, trained_on: int) -> IndexDescription:
    return IndexDescription(
        setting=setting.name,
        factory=setting.factory,
        why=setting.why,
        vectors=len(vectors),
        dim=vectors.shape[1],
        bytes_per_vector=_size(index) / len(vectors),
        disk_bytes_per_vector=2.0 * vectors.shape[1],
        rotated=setting.rotated,
        lists=setting.lists,
        probes=setting.probes or 0,
        probes_why="this many belong to the setting" if setting.probes else "",
        rescored=setting.rescored,
        trained_on=trained_on,
        faiss=import_faiss().__version__,
    )


def _size(index: Any) -> int:
    """Return the size of the serialized index in bytes, without keeping a copy of it."""
    faiss = import_faiss()
    counted = 0

    def count(block: bytes) -> int:
        nonlocal counted
        counted += len(block)
        return len(block)

    faiss.write_index(index, faiss.PyCallbackIOWriter(count, 1 << 20))
    return counted
