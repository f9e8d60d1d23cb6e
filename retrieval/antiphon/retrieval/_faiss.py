"""FAISS, imported late and in the one order that works; says what is missing. Knows nothing of indexes."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from types import ModuleType

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


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
