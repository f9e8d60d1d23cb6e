"""The vector index of a folder: chosen by its setting, built, written, opened again. Knows nothing of passages."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np

from antiphon.retrieval._faiss import import_faiss, require_gpu
from antiphon.retrieval.ann import FaissIndex, load_faiss
from antiphon.retrieval.description import Description
from antiphon.retrieval.durable import write_array
from antiphon.retrieval.factory import empty_index
from antiphon.retrieval.generation import IndexCorrupt
from antiphon.retrieval.settings import FLAT_NUMBERS, NAMES, Setting, choose
from antiphon.retrieval.training import TARGET, train_index
from antiphon.retrieval.vectors import NUMPY_LIMIT, FlatIndex, Rows, Vectors, normalized

LocalVectors = FlatIndex | FaissIndex
"""An index of this machine: exact, or trained."""

_EXACT, _ROUGH, _ANN = "vectors.npy", "vectors.f16.npy", "ann.faiss"


def vector_index(
    vectors: Vectors,
    setting: str | Setting = "auto",
    *,
    target: float = TARGET,
    queries: Vectors | None = None,
    gpu: bool = False,
) -> LocalVectors:
    """The vectors, searched as the setting says; by default as suits their number (see `choose`).

    The probes of an approximate index are chosen for a recall at 100 of ``target``: on a sample of the vectors, or on
    ``queries``, real questions of shape (n, dim).

    Raises:
        TypeError: the vectors are not an array of floats.
        ValueError: they are not of shape (n, dim), or one is zero or not a number; there is no such setting, or there
            are too few vectors for it; the target is no share.
        ImportError: FAISS is needed and not installed; says the command.
        RuntimeError: a GPU is asked for and FAISS finds none.
    """
    vectors = normalized(vectors)
    queries = None if queries is None else normalized(queries, dim=vectors.shape[1])
    if not 0 < target <= 1:
        raise ValueError(f"target is {target}; a recall is above 0 and at most 1.")
    suited = checked_setting(setting, *vectors.shape, gpu=gpu)
    return index_of_normalized(vectors, suited, target=target, queries=queries, gpu=gpu)


def index_of_normalized(
    vectors: Vectors,
    setting: Setting,
    *,
    target: float = TARGET,
    queries: Vectors | None = None,
    gpu: bool = False,
) -> LocalVectors:
    """The same as `vector_index`, for a setting from `checked_setting` and vectors from `normalized`: checks nothing.

    Raises:
        ImportError: FAISS is needed and not installed; says the command.
        RuntimeError: a GPU is asked for and FAISS finds none.
    """
    if setting.is_flat:
        return FlatIndex(vectors, gpu=gpu, are_normalized=True)
    return train_index(vectors, setting, target=target, queries=queries, gpu=gpu)


def saved_setting(description: Description, count: int) -> Setting:
    """The setting of an index that was written, for ``count`` vectors: one of ours by its name, else as it was given.

    Raises:
        ValueError: there is no such setting for vectors of so many numbers.
    """
    if description.setting in NAMES:
        chosen = choose(description.setting, count, description.dim)
        return replace(chosen, exact_rows=description.exact_rows, in_memory=description.in_memory)
    return Setting(
        description.setting,
        description.factory,
        description.rotated,
        description.probes,
        description.rescored,
        description.why,
        description.exact_rows,
        description.in_memory,
    )


def rebuilt_index(old: LocalVectors, vectors: Vectors, setting: Setting) -> LocalVectors:
    """An index of other vectors, from `normalized`, by the same setting.

    It is trained anew only where the setting would have more lists now.

    Raises:
        ValueError: there are too few vectors to train the setting.
        ImportError: FAISS is needed and not installed; says the command.
    """
    if setting.is_flat:
        return FlatIndex(vectors, are_normalized=True)
    if isinstance(old, FaissIndex) and _lists(setting.factory) <= _lists(old.description.factory):
        return old.refilled(vectors)
    return index_of_normalized(vectors, checked_setting(setting, *vectors.shape))


def checked_setting(setting: str | Setting, count: int, dim: int, *, gpu: bool = False) -> Setting:
    """What the setting means here, once it is known that it can be had; nothing is trained.

    Raises:
        ValueError: there is no such setting, or it needs more vectors.
        ImportError: it needs FAISS, which is not installed; says the command.
        RuntimeError: a GPU is asked for and FAISS finds none.
    """
    if gpu:
        require_gpu()
    suited = choose(setting, count, dim, gpu=gpu)
    if suited.is_flat and count <= NUMPY_LIMIT:
        return suited
    try:
        import_faiss()
    except ImportError as error:
        without = NUMPY_LIMIT if suited.is_flat else min(NUMPY_LIMIT, FLAT_NUMBERS // dim)
        asked = f"{count} passages" if suited.name in ("auto", "flat") else f"The setting {suited.name!r}"
        needs = f"need FAISS (without it at most {without})" if asked[0] != "T" else "needs FAISS"
        raise ImportError(f"{asked} {needs}. {error}") from error
    if not suited.is_flat:
        empty_index(suited, count, dim)
    return suited


def _lists(factory: str) -> int:
    match = re.search(r"IVF(\d+)", factory)
    return int(match[1]) if match else 1


def description_of(index: LocalVectors, setting: Setting) -> Description:
    """What the index is, and why."""
    if isinstance(index, FaissIndex):
        return index.description
    return Description(
        setting.name, "Flat", setting.why, len(index), index.dim, 4.0 * index.dim, in_memory=setting.in_memory
    )


def write_vectors(folder: Path, index: LocalVectors) -> None:
    """Float32 vectors where they are what is searched; else FAISS's index, and float16 vectors beside it."""
    if isinstance(index, FlatIndex):
        write_array(folder / _EXACT, index.vectors, np.float32)
        return
    index.save(folder / _ANN)
    write_array(folder / _ROUGH, index.vectors, np.float16)


def read_vectors(folder: Path, *, in_memory: int = FLAT_NUMBERS) -> Rows:
    """The vectors that `write_vectors` wrote, of shape (n, dim): read up to ``in_memory`` numbers, mapped above.

    Raises:
        IndexCorrupt: there are none.
    """
    path = folder / (_EXACT if (folder / _EXACT).is_file() else _ROUGH)
    if not path.is_file():
        raise IndexCorrupt(f"The index is damaged: {folder} holds no vectors. Make it again.")
    mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    return cast(Rows, mapped if mapped.size > in_memory else np.array(mapped))


def open_vectors(folder: Path, vectors: Rows, description: Description, *, gpu: bool = False) -> LocalVectors:
    """The index that was written, without building it again.

    Raises:
        ImportError: it needs FAISS, which is not installed; says the command.
        RuntimeError: a GPU is asked for and FAISS finds none.
        IndexMismatch: this version of FAISS does not read it.
        IndexCorrupt: the files disagree.
    """
    if description.factory == "Flat":
        return FlatIndex(cast(Vectors, vectors), gpu=gpu, are_normalized=True)
    return load_faiss(folder / _ANN, vectors, description, gpu=gpu)
