"""Train a FAISS index: create it from a setting, train it on a sample, add vectors, choose the number of probes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np

from antiphon.retrieval.vector_index.description import IndexDescription
from antiphon.retrieval.vector_index.faiss_index import FaissIndex, inverted_file_of
from antiphon.retrieval.vector_index.faiss_library import import_faiss
from antiphon.retrieval.vector_index.flat import Vectors
from antiphon.retrieval.vector_index.recall import GroundTruth, ground_truth
from antiphon.retrieval.vector_index.settings import NAMES, IndexSetting

TARGET = 0.95
"""The recall at 100 that the number of probes is chosen for."""

SEED = 1
"""The seed of all random numbers, so that the same vectors give the same index."""

_MARGIN = 0.02  # added to the target if the queries are indexed vectors, whose neighbours are easier to find
_TOLERANCE = 0.005  # if the target cannot be reached: recall below the best possible that is accepted for fewer probes
_SAMPLED = 256
_DOUBLINGS = 2  # of the rescored candidates, at most: 12 * k read 2.4 MB at dimension 1,024 and k = 100
_BLOCK = 65_536
_PER_LIST, _TRAINED = 64, 65_536  # numbers of training vectors: for each inverted list, and at least in total


def train_index(
    vectors: Vectors,
    setting: IndexSetting,
    *,
    target: float = TARGET,
    queries: Vectors | None = None,
    gpu: bool = False,
) -> FaissIndex:
    """Train the index of a setting, with as many probes as the target recall needs. The result is deterministic.

    Args:
        vectors: Of shape (n, dim) and length 1.
        setting: The setting, not flat.
        target: The recall at 100 to reach.
        queries: Real questions, of shape (n, dim). None: a sample of the vectors, with a target that is 0.02 higher.
        gpu: Search on the first GPU of FAISS. Training runs on the CPU.

    Raises:
        ImportError: FAISS is not installed; the message has the command.
        RuntimeError: A GPU is requested and FAISS finds none.
        ValueError: FAISS does not know the setting, or needs more vectors; the message says how many.
    """
    # 1. Create, train and fill the index.
    index = untrained_index(setting, *vectors.shape)
    trained_on = _train(index, vectors, setting)
    for first in range(0, len(vectors), _BLOCK):
        index.add(vectors[first : first + _BLOCK])
    made = FaissIndex(index, vectors, _describe(index, vectors, setting, trained_on), gpu=gpu)
    # 2. Choose the number of probes on one half of the queries.
    exact = ground_truth(vectors, _SAMPLED, queries=queries, seed=SEED)
    tuning, held_out = exact.halves() if len(exact.queries) > 1 else (exact, exact)
    aim = target if queries is not None else min(1.0, target + _MARGIN)
    if inverted_file_of(index) is not None:
        made = made.with_description(_tune(made, tuning, aim))
    # 3. Measure the recall on the other half.
    at_10, at_100 = (round(recall, 4) for recall in held_out.recalls(made.search, 10, 100))
    sampled = len(held_out.queries)
    return made.with_description(replace(made.description, recall_10=at_10, recall_100=at_100, sampled=sampled))


def untrained_index(setting: IndexSetting, count: int, dim: int) -> Any:
    """Create the untrained FAISS index of a setting.

    Args:
        setting: The setting.
        count: The number of vectors that it will be trained on.
        dim: Their dimension.

    Raises:
        ImportError: FAISS is not installed; the message has the command.
        ValueError: FAISS does not know the setting for this dimension, or needs more vectors.
    """
    faiss = import_faiss()
    index = _from_factory(setting.factory, setting.rotated or dim)
    needed = _fewest_training_vectors(index)
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

    The axes are the eigenvectors of the *uncentred* second moment, because subtracting a mean would change the order of
    inner products. The random rotation spreads the variance over all dimensions, so that all pieces into which a
    product quantizer cuts a vector matter alike.

    Args:
        vectors: Of shape (n, dim).
        dims: The number of axes to keep.
        seed: The seed of the random rotation.

    Returns:
        A matrix of shape (dims, dim) with orthonormal rows.
    """
    moment = vectors.T @ vectors / np.float32(len(vectors))
    _, axes = np.linalg.eigh(moment.astype(np.float64))  # by increasing eigenvalue
    turn, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((dims, dims)))
    rotation: Vectors = (turn @ axes[:, ::-1][:, :dims].T).astype(np.float32)
    return np.ascontiguousarray(rotation)


def _train(index: Any, vectors: Vectors, setting: IndexSetting) -> int:
    """Train an index on a sample, and return the size of the sample; 0 if the index needs no training."""
    lists = inverted_file_of(index)
    wanted = max(_TRAINED, _PER_LIST * (lists.nlist if lists is not None else 0))
    chosen = vectors
    if wanted < len(vectors):
        chosen = vectors[np.sort(np.random.default_rng(SEED).choice(len(vectors), wanted, replace=False))]
    if setting.rotated:
        faiss = import_faiss()
        linear = faiss.downcast_VectorTransform(index.chain.at(0))
        faiss.copy_array_to_vector(pca_rotation(chosen, setting.rotated, seed=SEED).ravel(), linear.A)
        linear.is_trained = True
    elif index.is_trained:
        return 0
    learned = [(rotation, _quiet_quantizer(rotation)) for rotation in _opq_rotations_of(index)]
    for rotation, quantizer in learned:
        rotation.pq = quantizer
    index.train(chosen)
    for rotation, _ in learned:
        rotation.pq = None  # Python owns the quantizer; FAISS would keep a dangling pointer
    return len(chosen)


def _tune(made: FaissIndex, exact: GroundTruth, aim: float) -> IndexDescription:
    """Return the description with the fewest probes, a power of two, whose recall at 100 reaches ``aim``.

    If even a search of all lists does not reach it, the number of rescored candidates is doubled once or twice, which
    needs no additional memory.
    """
    rough = made.description
    if rough.probes is not None:
        return replace(rough, probes_why="this many belong to the setting")
    tuned = _choose_probes(made, exact, aim)
    for _ in range(_DOUBLINGS if rough.rescored else 0):
        if max(recall for _, recall in tuned.curve) >= aim:
            break
        tuned = _choose_probes(made.with_description(replace(tuned, rescored=2 * tuned.rescored)), exact, aim)
    return tuned


def _choose_probes(made: FaissIndex, exact: GroundTruth, aim: float) -> IndexDescription:
    """Return the description with the fewest probes that reach ``aim`` or, if none do, nearly the best recall."""
    rough = made.description
    curve: list[tuple[int, float]] = []
    for probes in _powers_of_two(rough.lists or 1):
        recall = exact.recall(made.with_description(replace(rough, probes=probes)).search, 100)
        curve.append((probes, round(recall, 4)))
        if curve[-1][1] >= aim:
            break
    highest = max(recall for _, recall in curve)
    wanted = aim if highest >= aim else highest - _TOLERANCE
    probes, recall = next((probes, recall) for probes, recall in curve if recall >= wanted)
    reached = "reach" if highest >= aim else "come as near as its codes allow to"
    why = f"the fewest that {reached} a recall@100 of {aim:.2f} on a sample ({recall:.3f})"
    return replace(rough, probes=probes, probes_why=why, curve=tuple(curve))


def _powers_of_two(lists: int) -> list[int]:
    return [*(2**power for power in range(lists.bit_length()) if 2**power < lists), lists]


def _describe(index: Any, vectors: Vectors, setting: IndexSetting, trained_on: int) -> IndexDescription:
    lists = inverted_file_of(index)
    return IndexDescription(
        setting=setting.name,
        factory=setting.factory,
        why=setting.why,
        vectors=len(vectors),
        dim=vectors.shape[1],
        bytes_per_vector=_size(index) / len(vectors),
        disk_bytes_per_vector=2.0 * vectors.shape[1],
        rotated=setting.rotated,
        lists=None if lists is None else lists.nlist,
        probes=setting.probes,
        rescored=setting.rescored,
        trained_on=trained_on,
        faiss=import_faiss().__version__,
        exact_rows=setting.exact_rows,
        in_memory=setting.in_memory,
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


def _from_factory(factory: str, dim: int) -> Any:
    faiss = import_faiss()
    try:
        index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)  # the default metric is L2
    except RuntimeError as error:
        reason = re.sub(r"^.*(?:\.cpp:\d+: |exception )", "", str(error).strip(), flags=re.DOTALL)
        raise ValueError(
            f"There is no setting {factory!r} for vectors of {dim} numbers: choose {', '.join(NAMES)} or a factory "
            f"string of FAISS, such as 'IVF1024,PQ64' (FAISS says: {reason})."
        ) from error
    lists = inverted_file_of(index)
    if lists is not None and lists.nlist < 1:
        raise ValueError(f"The setting {factory!r} has no list; an inverted file needs at least 1.")
    for part in (lists, index):
        _make_deterministic(part)
    return index


def _make_deterministic(part: Any) -> None:
    """Fix the seeds, silence FAISS's warnings, and skip training steps that have no effect on searches."""
    trainers: list[Any] = [part, getattr(part, "pq", None)]
    for trainer in trainers:
        if hasattr(trainer, "cp"):
            trainer.cp.min_points_per_centroid = 1  # `untrained_index` has checked their number
            trainer.cp.seed = SEED
    if hasattr(part, "do_polysemous_training"):
        part.do_polysemous_training = False  # searches do not use it


def _opq_rotations_of(index: Any) -> list[Any]:
    """Return the OPQ transforms of an index; each is a rotation that is learned in training."""
    faiss = import_faiss()
    if not isinstance(index, faiss.IndexPreTransform):
        return []
    steps = [faiss.downcast_VectorTransform(index.chain.at(place)) for place in range(index.chain.size())]
    return [step for step in steps if isinstance(step, faiss.OPQMatrix)]


def _quiet_quantizer(rotation: Any) -> Any:
    """Return a quantizer for training an OPQ matrix; the one that FAISS would create prints hundreds of warnings."""
    quantizer = import_faiss().ProductQuantizer(rotation.d_out, rotation.M, 8)
    quantizer.cp.min_points_per_centroid = 1
    quantizer.cp.seed = SEED
    return quantizer


def _fewest_training_vectors(index: Any) -> int:
    """Return how many vectors FAISS needs for training: one for each list, and one for each code of a quantizer."""
    lists = inverted_file_of(index)
    quantizers = [getattr(each, "pq", None) for each in (lists, index)]
    codes: list[int] = [pq.ksub for pq in quantizers if pq is not None] + [256 for _ in _opq_rotations_of(index)]
    return max([1 if lists is None else lists.nlist, *codes])
