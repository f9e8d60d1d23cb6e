"""LlamaIndex's words for what Antiphon does: LLM, embedding, vector store, retriever and reranker.

Names are imported when they are first used. Needs the extra ``llama-index``, which is llama-index-core alone.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if find_spec("llama_index") is None or find_spec("llama_index.core") is None:
    raise ImportError(
        "antiphon.integrations.llama_index needs llama-index-core; run: pip install 'antiphon[llama-index]'"
    )

if TYPE_CHECKING:
    from antiphon.integrations.llama_index.embedding import AntiphonEmbedding
    from antiphon.integrations.llama_index.llm import AntiphonLLM
    from antiphon.integrations.llama_index.passage_index import VectorStorePassages
    from antiphon.integrations.llama_index.reranker import AntiphonRerank
    from antiphon.integrations.llama_index.retriever import AntiphonRetriever
    from antiphon.integrations.llama_index.vector_store import AntiphonVectorStore

_HOMES = {
    "AntiphonEmbedding": "embedding",
    "AntiphonLLM": "llm",
    "AntiphonRerank": "reranker",
    "AntiphonRetriever": "retriever",
    "AntiphonVectorStore": "vector_store",
    "VectorStorePassages": "passage_index",
}

__all__ = [
    "AntiphonEmbedding",
    "AntiphonLLM",
    "AntiphonRerank",
    "AntiphonRetriever",
    "AntiphonVectorStore",
    "VectorStorePassages",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
