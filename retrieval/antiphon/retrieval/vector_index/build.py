"""Build a vector index with a setting, rebuild it for changed vectors, and describe it."""

from __future__ import annotations

import re
from dataclasses import replace

from antiphon.retrieval.vector_index.description import IndexDescription
from antiphon.retrieval.vector_index.faiss_index import FaissIndex
from antiphon.retrieval.vector_index.faiss_library import import_faiss, require_gpu
from antiphon.retrieval.vector_index.flat import NUMPY_LIMIT, FlatIndex, Vectors, normalized
from antiphon.retrieval.vector_index.settings import FLAT_NUMBERS, NAMES, IndexSetting, choose_setting
from antiphon.retrieval.vector_index.training import TARGET, train_index, untrained_index

LocalVectorIndex = FlatIndex | FaissIndex
"""An index in this process: exact, or trained."""


def build_vector_index(
    vectors: Vectors,
    setting: str | IndexSetting = "auto",
    *,
    target: float = TARGET,
    queries: Vectors | None = None,
    gpu: bool = False,
) -> LocalVectorIndex:
    """Build an index over vectors.

    Args:
        vectors: Of shape (n, dim); they are normalized.
        setting: ``auto``, ``flat``, ``compact``, ``paper`` or a factory string of FAISS; see `choose_setting`.
        target: The recall at 100 that the number of probes of an approximate index is chosen for.
        queries: Real questions, of shape (n, dim), to measure recall with. None: a sample of the vectors.
        gpu: Search on the first GPU of FAISS.

    Raises:
        TypeError: The vectors are not an array of floats.
        ValueError: The vectors have a wrong shape, or one is zero or not finite; the setting is unknown or needs more
            vectors; or the target is out of range.
        ImportError: FAISS is needed and not installed; the message has the command.
        RuntimeError: A GPU is requested and FAISS finds none.
    """
    vectors = normalized(vectors)
    queries = None if queries is None else normalized(queries, dim=vectors.shape[1])
    if not 0 < target <= 1:
        raise ValueError(f"target is {target}; a recall is above 0 and at most 1.")
    checked = check_setting(setting, *vectors.shape, gpu=gpu)
    return build_from_normalized(vectors, checked, target=target, queries=queries, gpu=gpu)


def build_from_normalized(
    vectors: Vectors,
    setting: IndexSetting,
    *,
    target: float = TARGET,
    queries: Vectors | None = None,
    gpu: bool = False,
) -> LocalVectorIndex:
    """Build an index as `build_vector_index` does, without checking its arguments again.

    Args:
        vectors: Of shape (n, dim), from `normalized`.
        setting: From `check_setting`.
        target: The recall at 100 to reach.
        queries: Real questions, of shape (n, dim), from `normalized`.
        gpu: Search on the first GPU of FAISS.

    Raises:
        ImportError: FAISS is needed and not installed; the message has the command.
        RuntimeError: A GPU is requested and FAISS finds none.
    """
    if setting.is_flat:
        return FlatIndex(vectors, gpu=gpu, are_normalized=True)
    return train_index(vectors, setting, target=target, queries=queries, gpu=gpu)


def rebuild_index(old: LocalVectorIndex, vectors: Vectors, setting: IndexSetting) -> LocalVectorIndex:
    """Build an index of other vectors with the same setting; it is trained again only if it would have more lists.

    Args:
        old: The index whose training is reused.
        vectors: Of shape (n, dim), from `normalized`.
        setting: The setting for the new number of vectors.

    Raises:
        ValueError: There are too few vectors to train with.
        ImportError: FAISS is needed and not installed; the message has the command.
    """
    if setting.is_flat:
        return FlatIndex(vectors, are_normalized=True)
    if isinstance(old, FaissIndex) and _list_count(setting.factory) <= _list_count(old.description.factory):
        return old.refilled(vectors)
    return build_from_normalized(vectors, check_setting(setting, *vectors.shape))


def check_setting(setting: str | IndexSetting, count: int, dim: int, *, gpu: bool = False) -> IndexSetting:
    """Resolve a setting, and check that it can be built here without training anything.

    Args:
        setting: Its name, or the setting itself.
        count: The number of vectors.
        dim: Their dimension.
        gpu: Search on the first GPU of FAISS.

    Raises:
        ValueError: The setting is unknown or needs more vectors.
        ImportError: FAISS is needed and not installed; the message has the command.
        RuntimeError: A GPU is requested and FAISS finds none.
    """
    if gpu:
        require_gpu()
    chosen = choose_setting(setting, count, dim, gpu=gpu)
    if chosen.is_flat and count <= NUMPY_LIMIT:
        return chosen
    try:
        import_faiss()
    except ImportError as error:
        without = NUMPY_LIMIT if chosen.is_flat else min(NUMPY_LIMIT, FLAT_NUMBERS // dim)
        asked = f"{count} passages" if chosen.name in ("auto", "flat") else f"The setting {chosen.name!r}"
        needs = f"need FAISS (without it at most {without})" if asked[0] != "T" else "needs FAISS"
        raise ImportError(f"{asked} {needs}. {error}") from error
    if not chosen.is_flat:
        untrained_index(chosen, count, dim)
    return chosen


def setting_of_saved_index(description: IndexDescription, count: int) -> IndexSetting:
    """Return the setting of a saved index for a new number of vectors.

    A named setting is adapted to the number; a factory string of the user is kept.

    Args:
        description: The description that was saved with the index.
        count: The new number of vectors.

    Raises:
        ValueError: The setting does not exist for this dimension.
    """
    if description.setting in NAMES:
        chosen = choose_setting(description.setting, count, description.dim)
        return replace(chosen, exact_rows=description.exact_rows, in_memory=description.in_memory)
    return IndexSetting(
        description.setting,
        description.factory,
        description.rotated,
        description.probes,
        description.rescored,
        description.why,
        description.exact_rows,
        description.in_memory,
    )


def describe_index(index: LocalVectorIndex, setting: IndexSetting) -> IndexDescription:
    """Return the description of an index: the one from its training, or a new one for exact search.

    Args:
        index: The index.
        setting: The setting that it was built with.
    """
    if isinstance(index, FaissIndex):
        return index.description
    return IndexDescription(
        setting.name, "Flat", setting.why, len(index), index.dim, 4.0 * index.dim, in_memory=setting.in_memory
    )


def _list_count(factory: str) -> int:
    match = re.search(r"IVF(\d+)", factory)
    return int(match[1]) if match else 1
