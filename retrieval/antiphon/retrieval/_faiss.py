"""FAISS, imported late and in the one order that works, and its GPU; says what is missing. Knows no settings."""

from __future__ import annotations

import os
import sys
import threading
from importlib import metadata
from types import ModuleType
from typing import Any

_REPAIR = "pip uninstall -y faiss-cpu faiss-gpu && pip install 'antiphon[{extra}]'"


def import_faiss() -> ModuleType:
    """The ``faiss`` module.

    Raises:
        ImportError: no FAISS is installed, or two packages have overwritten each other's files; says the command.
    """
    installed = [name for name in ("faiss-cpu", "faiss-gpu", "faiss-gpu-cuvs") if _is_installed(name)]
    if len(installed) > 1:
        commands = " or ".join(_REPAIR.format(extra=extra) for extra in ("retrieval", "retrieval-gpu"))
        raise ImportError(f"{' and '.join(installed)} are both installed and overwrite each other's files: {commands}")
    if sys.platform == "darwin":
        os.environ.setdefault("KMP_DUPLICATE_LIB_OK", "TRUE")  # both wheels ship a libomp, and the second one aborts
    import torch  # noqa: F401  # first: then both share torch's pool of threads

    try:
        import faiss
    except ImportError as error:
        raise ImportError("FAISS is not installed: pip install 'antiphon[retrieval]'") from error
    if sys.platform == "darwin":
        faiss.omp_set_num_threads(1)
    module: ModuleType = faiss
    return module


def require_gpu() -> ModuleType:
    """The ``faiss`` module, which has a GPU to search on.

    Raises:
        ImportError: no FAISS is installed, or two packages of it are.
        RuntimeError: it finds no GPU.
    """
    faiss = import_faiss()
    if not faiss.get_num_gpus():  # FAISS itself would make an empty index of it
        raise RuntimeError(
            "A GPU is asked for, but FAISS finds none here: it needs a GPU, and "
            "pip install 'antiphon[retrieval-gpu]' in the place of 'antiphon[retrieval]'."
        )
    return faiss


class OnGpu:
    """An index copied to the first GPU, for one search at a time: its scratch memory is shared by all of them.

    Raises:
        RuntimeError: FAISS finds no GPU here, or has no version of this index for one.
    """

    def __init__(self, index: Any) -> None:
        faiss = require_gpu()
        options = faiss.GpuClonerOptions()
        options.useFloat16 = True  # else the tables of 64 sub-quantisers do not fit a GPU's shared memory
        self._resources = faiss.StandardGpuResources()
        self._lock = threading.Lock()
        try:
            self._index: Any = faiss.index_cpu_to_gpu(self._resources, 0, index, options)
        except RuntimeError as error:
            raise RuntimeError(f"FAISS has no {type(index).__name__} for a GPU; choose another setting.") from error

    def search(self, queries: Any, k: int, **options: Any) -> tuple[Any, Any]:
        """Scores and rows, as FAISS gives them."""
        with self._lock:
            scores, rows = self._index.search(queries, k, **options)
        return scores, rows


def flat(vectors: Any) -> Any:
    """An exact index by inner product of a copy of the vectors."""
    index = import_faiss().IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return index


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
