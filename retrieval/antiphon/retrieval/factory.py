"""A setting to an untrained FAISS index: made, checked, and set to give the same every time. Trains nothing."""

from __future__ import annotations

import re
from typing import Any

from antiphon.retrieval._faiss import import_faiss
from antiphon.retrieval.ann import inverted_lists
from antiphon.retrieval.settings import NAMES, Setting

SEED = 1
"""Of everything that is drawn."""


def empty_index(setting: Setting, count: int, dim: int) -> Any:
    """The untrained FAISS index of a setting, once ``count`` vectors are known to suffice for it.

    Raises:
        ImportError: FAISS is not installed; says the command.
        ValueError: FAISS has no such setting for vectors of ``dim`` numbers, or it needs more of them.
    """
    faiss = import_faiss()
    index = _from_factory(setting.factory, setting.rotated or dim)
    needed = _needs(index)
    if count < needed:
        raise ValueError(
            f"The setting {setting.name!r} is trained on {needed:,} vectors at least, and there are {count:,}; "
            "use the setting 'auto'."
        )
    if not setting.rotated:
        return index
    return faiss.IndexPreTransform(faiss.LinearTransform(dim, setting.rotated, False), index)


def learned_rotations(index: Any) -> list[Any]:
    """The OPQ matrices before an index: they learn a rotation."""
    faiss = import_faiss()
    if not isinstance(index, faiss.IndexPreTransform):
        return []
    steps = [faiss.downcast_VectorTransform(index.chain.at(place)) for place in range(index.chain.size())]
    return [step for step in steps if isinstance(step, faiss.OPQMatrix)]


def quantiser_of(rotation: Any) -> Any:
    """What an OPQ matrix learns with: the one that FAISS would make itself prints hundreds of warnings."""
    quantiser = import_faiss().ProductQuantizer(rotation.d_out, rotation.M, 8)
    quantiser.cp.min_points_per_centroid = 1
    quantiser.cp.seed = SEED
    return quantiser


def _from_factory(factory: str, dim: int) -> Any:
    faiss = import_faiss()
    try:
        index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)  # without the metric it would be L2
    except RuntimeError as error:
        reason = re.sub(r"^.*(?:\.cpp:\d+: |exception )", "", str(error).strip(), flags=re.DOTALL)
        raise ValueError(
            f"There is no setting {factory!r} for vectors of {dim} numbers: choose {', '.join(NAMES)} or a factory "
            f"string of FAISS, such as 'IVF1024,PQ64' (FAISS says: {reason})."
        ) from error
    lists = inverted_lists(index)
    if lists is not None and lists.nlist < 1:
        raise ValueError(f"The setting {factory!r} has no list; an inverted file needs at least 1.")
    for part in (lists, index):
        _make_deterministic(part)
    return index


def _make_deterministic(part: Any) -> None:
    """Fix the seeds, keep FAISS from printing warnings, and skip training that no search uses."""
    trainers: list[Any] = [part, getattr(part, "pq", None)]
    for trainer in trainers:
        if hasattr(trainer, "cp"):
            trainer.cp.min_points_per_centroid = 1  # what is too few we have said ourselves
            trainer.cp.seed = SEED
    if hasattr(part, "do_polysemous_training"):
        part.do_polysemous_training = False  # a factory string turns it on; it only renumbers codes


def _needs(index: Any) -> int:
    """How many vectors FAISS refuses to train with less of: one for each list, and for each code of a quantiser."""
    lists = inverted_lists(index)
    quantisers = [getattr(each, "pq", None) for each in (lists, index)]
    codes: list[int] = [pq.ksub for pq in quantisers if pq is not None] + [256 for _ in learned_rotations(index)]
    return max([1 if lists is None else lists.nlist, *codes])
