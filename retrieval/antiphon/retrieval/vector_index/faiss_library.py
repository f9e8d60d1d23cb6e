"""Import FAISS in an order that works together with torch."""

from __future__ import annotations

import os
import sys
from types import ModuleType


def import_faiss() -> ModuleType:
    """Return the ``faiss`` module."""
    if sys.platform == "darwin":
        # Both wheels ship a libomp, and loading the second one would abort the process.
        os.environ.setdefault("KMP_DUPLICATE_LIB_OK", "TRUE")
    import faiss
    import torch  # noqa: F401  # before faiss, so that both share torch's thread pool

    if sys.platform == "darwin":
        faiss.omp_set_num_threads(1)
    module: ModuleType = faiss
    return module
