"""A setting and vectors to a trained index: sample, train, add, choose the probes. Knows nothing of files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from antiphon.retrieval._faiss import import_faiss
from antiphon.retrieval.ann import FaissIndex, inverted_lists
from antiphon.retrieval.description import Description
from antiphon.retrieval.factory import SEED, empty_index, learned_rotations, quantiser_of
from antiphon.retrieval.recall import GroundTruth, ground_truth
from antiphon.retrieval.rotation import principal_rotation
from antiphon.retrieval.settings import Setting
from antiphon.retrieval.vectors import Vectors

TARGET = 0.95
"""The recall at 100 that probes are chosen for."""

_MARGIN = 0.02  # aimed higher where vectors of the corpus stand in for questions: these are easier to answer
_ENOUGH = 0.005  # where the target is out of reach, so much less recall is worth fewer probes
_SAMPLED = 256
_DOUBLINGS = 2  # of the candidates that are scored again: 12 * k of them read 2.4 MB of 1,024 numbers for 100 hits
_BLOCK = 65_536
_PER_LIST, _TRAINED = 64, 65_536  # vectors to train on: enough for each list, and for the quantiser


def train_index(
    vectors: Vectors,
    setting: Setting,
    *,
    target: float = TARGET,
    queries: Vectors | None = None,
    gpu: bool = False,
) -> FaissIndex:
    """The index that ``setting`` describes, over vectors of length 1, with as many probes as ``target`` needs.

    ``queries`` are real questions, of shape (n, dim), that the probes are chosen by; without them vectors of the corpus
    are taken, and the aim is .02 higher. The same vectors give the same index. A GPU searches; it does not train.

    Raises:
        ImportError: FAISS is not installed; says the command.
        RuntimeError: a GPU is asked for and FAISS finds none.
        ValueError: FAISS has no such setting, or there are too few vectors for it; says how many it needs.
    """
    index = empty_index(setting, *vectors.shape)
    trained_on = _train(index, vectors, setting)
    for first in range(0, len(vectors), _BLOCK):
        index.add(vectors[first : first + _BLOCK])
    made = FaissIndex(index, vectors, _described(index, vectors, setting, trained_on), gpu=gpu)
    exact = ground_truth(vectors, _SAMPLED, queries=queries, seed=SEED)
    tuning, held_out = exact.halves() if len(exact.queries) > 1 else (exact, exact)
    aim = target if queries is not None else min(1.0, target + _MARGIN)
    if inverted_lists(index) is not None:
        made = made.described(_tuned(made, tuning, aim))
    at_10, at_100 = (round(recall, 4) for recall in held_out.recalls(made.search, 10, 100))
    sampled = len(held_out.queries)
    return made.described(replace(made.description, recall_10=at_10, recall_100=at_100, sampled=sampled))


def _train(index: Any, vectors: Vectors, setting: Setting) -> int:
    """Train on a sample; returns of how many vectors. An index without anything to learn needs none."""
    lists = inverted_lists(index)
    wanted = max(_TRAINED, _PER_LIST * (lists.nlist if lists is not None else 0))
    chosen = vectors
    if wanted < len(vectors):
        chosen = vectors[np.sort(np.random.default_rng(SEED).choice(len(vectors), wanted, replace=False))]
    if setting.rotated:
        faiss = import_faiss()
        linear = faiss.downcast_VectorTransform(index.chain.at(0))
        faiss.copy_array_to_vector(principal_rotation(chosen, setting.rotated, seed=SEED).ravel(), linear.A)
        linear.is_trained = True
    elif index.is_trained:
        return 0
    learned = [(rotation, quantiser_of(rotation)) for rotation in learned_rotations(index)]
    for rotation, quantiser in learned:
        rotation.pq = quantiser
    index.train(chosen)
    for rotation, _ in learned:
        rotation.pq = None  # it belongs to us, and FAISS would go on pointing to it
    return len(chosen)


def _tuned(made: FaissIndex, exact: GroundTruth, aim: float) -> Description:
    """With the fewest probes, of powers of two, whose recall at 100 reaches ``aim``, or nearly the best there is.

    Where all lists together do not reach it, more of the best are scored again, twice as many each time: that costs no
    memory.
    """
    rough = made.description
    if rough.probes is not None:
        return replace(rough, probes_why="this many belong to the setting")
    tuned = _probed(made, exact, aim)
    for _ in range(_DOUBLINGS if rough.rescored else 0):
        if max(recall for _, recall in tuned.curve) >= aim:
            break
        tuned = _probed(made.described(replace(tuned, rescored=2 * tuned.rescored)), exact, aim)
    return tuned


def _probed(made: FaissIndex, exact: GroundTruth, aim: float) -> Description:
    """With the fewest probes, of powers of two, that reach ``aim``, or nearly the best there is."""
    rough = made.description
    curve: list[tuple[int, float]] = []
    for probes in _ladder(rough.lists or 1):
        recall = exact.recall(made.described(replace(rough, probes=probes)).search, 100)
        curve.append((probes, round(recall, 4)))
        if curve[-1][1] >= aim:
            break
    highest = max(recall for _, recall in curve)
    wanted = aim if highest >= aim else highest - _ENOUGH
    probes, recall = next((probes, recall) for probes, recall in curve if recall >= wanted)
    reached = "reach" if highest >= aim else "come as near as its codes allow to"
    why = f"the fewest that {reached} a recall@100 of {aim:.2f} on a sample ({recall:.3f})"
    return replace(rough, probes=probes, probes_why=why, curve=tuple(curve))


def _ladder(lists: int) -> list[int]:
    return [*(2**power for power in range(lists.bit_length()) if 2**power < lists), lists]


def _described(index: Any, vectors: Vectors, setting: Setting, trained_on: int) -> Description:
    lists = inverted_lists(index)
    return Description(
        setting=setting.name,
        factory=setting.factory,
        why=setting.why,
        vectors=len(vectors),
        dim=vectors.shape[1],
        bytes_per_vector=_bytes(index) / len(vectors),
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


def _bytes(index: Any) -> int:
    """What the index holds, as it would be written: counted, not kept."""
    faiss = import_faiss()
    counted = 0

    def count(block: bytes) -> int:
        nonlocal counted
        counted += len(block)
        return len(block)

    faiss.write_index(index, faiss.PyCallbackIOWriter(count, 1 << 20))
    return counted
