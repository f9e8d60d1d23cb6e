"""Import FAISS in the order that works next to torch, explain what is missing, and copy indexes to a GPU."""

from __future__ import annotations

import os
import sys
import threading
from importlib import metadata
from types import ModuleType
from typing import Any

_REPAIR = "pip uninstall -y faiss-cpu faiss-gpu && pip install 'antiphon[{extra}]'"


def import_faiss() -> ModuleType:
    """Return the ``faiss`` module.

    Raises:
        ImportError: FAISS is not installed, or two packages have overwritten each other's files; the message has the
            command that repairs it.
    """
    installed = [name for name in ("faiss-cpu", "faiss-gpu", "faiss-gpu-cuvs") if _is_installed(name)]
    if len(installed) > 1:
        commands = " or ".join(_REPAIR.format(extra=extra) for extra in ("retrieval", "retrieval-gpu"))
        raise ImportError(f"{' and '.join(installed)} are both installed and overwrite each other's files: {commands}")
    if sys.platform == "darwin":
        os.environ.setdefault(
            "KMP_DUPLICATE_LIB_OK", "TRUE"
        )  # both wheels ship a libomp; loading the second one aborts the process
    import torch  # noqa: F401  # before faiss, so that both share torch's thread pool

    try:
        import faiss
    except ImportError as error:
        raise ImportError("FAISS is not installed: pip install 'antiphon[retrieval]'") from error
    if sys.platform == "darwin":
        faiss.omp_set_num_threads(1)
    module: ModuleType = faiss
    return module


def require_gpu() -> ModuleType:
    """Return the ``faiss`` module if it finds a GPU.

    Raises:
        ImportError: FAISS is not installed, or two packages of it are.
        RuntimeError: FAISS finds no GPU.
    """
    faiss = import_faiss()
    if not faiss.get_num_gpus():  # without this check FAISS would silently create an empty index
        raise RuntimeError(
            "A GPU is asked for, but FAISS finds none here: it needs a GPU, and "
            "pip install 'antiphon[retrieval-gpu]' instead of 'antiphon[retrieval]'."
        )
    return faiss


class GpuIndex:
    """A copy of an index on the first GPU. It runs one search at a time, because searches share scratch memory.

    Args:
        index: A FAISS index on the CPU.

    Raises:
        RuntimeError: FAISS finds no GPU, or does not support this kind of index on GPUs.
    """

    def __init__(self, index: Any) -> None:
        faiss = require_gpu()
        options = faiss.GpuClonerOptions()
        options.useFloat16 = True  # float32 tables of 64 sub-quantizers do not fit into a GPU's shared memory
        self._resources = faiss.StandardGpuResources()
        self._lock = threading.Lock()
        try:
            self._index: Any = faiss.index_cpu_to_gpu(self._resources, 0, index, options)
        except RuntimeError as error:
            raise RuntimeError(f"FAISS has no {type(index).__name__} for a GPU; choose another setting.") from error

    def search(self, queries: Any, k: int, **options: Any) -> tuple[Any, Any]:
        """Return scores and rows of the ``k`` best hits, each of shape (queries, k); the row is -1 if there are fewer.

        Args:
            queries: Of shape (queries, dim).
            k: How many hits to return.
            **options: Search parameters of FAISS.
        """
        with self._lock:
            scores, rows = self._index.search(queries, k, **options)
        return scores, rows


def exact_faiss_index(vectors: Any) -> Any:
    """Return an exact inner-product index over a copy of the vectors."""
    index = import_faiss().IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return index


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
