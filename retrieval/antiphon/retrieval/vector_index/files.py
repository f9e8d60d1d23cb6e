"""Files of a vector index: float32 vectors for exact search, else a FAISS index and float16 vectors."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from antiphon.retrieval.errors import IndexCorrupt
from antiphon.retrieval.vector_index.build import LocalVectorIndex
from antiphon.retrieval.vector_index.description import IndexDescription
from antiphon.retrieval.vector_index.faiss_index import read_faiss_index
from antiphon.retrieval.vector_index.flat import FlatIndex, StoredVectors, Vectors
from antiphon.retrieval.vector_index.settings import FLAT_NUMBERS

_FLOAT32, _FLOAT16, _FAISS = "vectors.npy", "vectors.f16.npy", "ann.faiss"
_BLOCK = 65_536


def write_vectors(folder: Path, index: LocalVectorIndex) -> None:
    """Write an index into an existing folder."""
    if isinstance(index, FlatIndex):
        write_array(folder / _FLOAT32, index.vectors, np.float32)
        return
    index.save(folder / _FAISS)
    write_array(folder / _FLOAT16, index.vectors, np.float16)


def read_vectors(folder: Path, *, in_memory: int = FLAT_NUMBERS) -> StoredVectors:
    """Return the vectors that `write_vectors` wrote, of shape (n, dim).

    Args:
        in_memory: A file with more numbers than this is memory-mapped; a smaller file is read into memory.

    Raises:
        IndexCorrupt: The folder contains no vectors.
    """
    path = folder / (_FLOAT32 if (folder / _FLOAT32).is_file() else _FLOAT16)
    if not path.is_file():
        raise IndexCorrupt(f"The index is damaged: {folder} holds no vectors. Make it again.")
    mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    return cast(StoredVectors, mapped if mapped.size > in_memory else np.array(mapped))


def open_vectors(folder: Path, vectors: StoredVectors, description: IndexDescription) -> LocalVectorIndex:
    """Open the index that `write_vectors` wrote, for the vectors of `read_vectors`.

    Raises:
        IndexMismatch: The installed version of FAISS cannot read the file.
        IndexCorrupt: The files do not belong together.
    """
    if description.factory == "Flat":
        return FlatIndex(cast(Vectors, vectors), are_normalized=True)
    return read_faiss_index(folder / _FAISS, vectors, description)


def write_array(path: Path, array: NDArray[np.generic], dtype: DTypeLike) -> None:
    """Write an array as ``.npy``. The array is converted block by block, to save memory.

    Unlike `numpy.save`, this raises an ``OSError`` with the errno of a full disk.
    """
    kind = np.dtype(dtype).newbyteorder("<")
    header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": array.shape}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for first in range(0, len(array), _BLOCK):
            file.write(array[first : first + _BLOCK].astype(kind).tobytes())
