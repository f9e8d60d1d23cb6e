"""Build a vector index with a setting, rebuild it for changed vectors, and describe it."""

from __future__ import annotations

from antiphon.retrieval.vector_index.description import IndexDescription
from antiphon.retrieval.vector_index.faiss_index import FaissIndex
from antiphon.retrieval.vector_index.flat import FlatIndex, Vectors, normalized
from antiphon.retrieval.vector_index.settings import IndexSetting, choose_setting
from antiphon.retrieval.vector_index.training import train_index, untrained_index

LocalVectorIndex = FlatIndex | FaissIndex
"""An index in this process: exact, or trained."""


def build_vector_index(vectors: Vectors, setting: str | IndexSetting = "auto") -> LocalVectorIndex:
    """Build an index of vectors.

    Args:
        vectors: Of shape (n, dim); normalized by this function.
        setting: ``auto``, ``flat`` or ``compact``; see `choose_setting`.

    Raises:
        TypeError: The vectors are not an array of floats.
        ValueError: The vectors have a wrong shape, a vector is zero or not finite, or the setting
            is unknown or needs more vectors.
    """
    vectors = normalized(vectors)
    return build_from_normalized(vectors, check_setting(setting, *vectors.shape))


def build_from_normalized(vectors: Vectors, setting: IndexSetting) -> LocalVectorIndex:
    """Build an index from the results of `normalized` and of `check_setting`."""
    return FlatIndex(vectors, are_normalized=True) if setting.is_flat else train_index(vectors, setting)


def rebuild_index(old: LocalVectorIndex, vectors: Vectors, setting: IndexSetting) -> LocalVectorIndex:
    """Build an index of new vectors; the index is trained again only if the new setting has more inverted lists.

    Args:
        old: The index whose training is reused.
        vectors: Of shape (n, dim), from `normalized`.
        setting: The setting for the new number of vectors.

    Raises:
        ValueError: The index must be trained, and there are too few vectors for that.
    """
    if isinstance(old, FaissIndex) and not setting.is_flat and setting.lists <= old.description.lists:
        return old.refilled(vectors)
    return build_from_normalized(vectors, check_setting(setting, *vectors.shape))


def check_setting(setting: str | IndexSetting, count: int, dim: int) -> IndexSetting:
    """Return the result of `choose_setting`, after a check that there are enough vectors for this setting.

    Raises:
        ValueError: The setting is unknown or needs more vectors.
    """
    chosen = choose_setting(setting, count, dim)
    if chosen.is_flat:
        return chosen
    untrained_index(chosen, count, dim)
    return chosen


def describe_index(index: LocalVectorIndex, setting: IndexSetting) -> IndexDescription:
    """Return the description that training made; for exact search, return a description made from the setting."""
    if isinstance(index, FaissIndex):
        return index.description
    return IndexDescription(setting.name, "Flat", setting.why, len(index), index.dim, 4.0 * index.dim)
