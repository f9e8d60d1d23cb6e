"""Import FAISS in the order that works next to torch, and explain what is missing."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from types import ModuleType

_REPAIR = "pip uninstall -y faiss-cpu faiss-gpu && pip install faiss-cpu"


def import_faiss() -> ModuleType:
    """Return the ``faiss`` module.

    Raises:
        ImportError: FAISS is not installed, or two packages have overwritten each other's files; the message has the
            command that repairs it.
    """
    installed = [name for name in ("faiss-cpu", "faiss-gpu", "faiss-gpu-cuvs") if _is_installed(name)]
    if len(installed) > 1:
        raise ImportError(f"{' and '.join(installed)} are both installed and overwrite each other's files: {_REPAIR}")
    if sys.platform == "darwin":
        os.environ.setdefault(
            "KMP_DUPLICATE_LIB_OK", "TRUE"
        )  # both wheels ship a libomp; loading the second one aborts the process
    import torch  # noqa: F401  # before faiss, so that both share torch's thread pool

    try:
        import faiss
    except ImportError as error:
        raise ImportError("FAISS is not installed: pip install faiss-cpu") from error
    if sys.platform == "darwin":
        faiss.omp_set_num_threads(1)
    module: ModuleType = faiss
    return module


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
