"""Passages in somebody else's server, behind the same retriever. Each client is imported when it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.retrieval.engines.milvus import MilvusIndex
    from antiphon.retrieval.engines.postgres import PgvectorIndex
    from antiphon.retrieval.engines.qdrant import QdrantIndex

_HOME = {"MilvusIndex": "milvus", "PgvectorIndex": "postgres", "QdrantIndex": "qdrant"}

__all__ = ["MilvusIndex", "PgvectorIndex", "QdrantIndex"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
