"""LangChain's words for what Antiphon does: chat model, LLM, embeddings, vector store, retriever and reranker.

Names are imported when they are first used. Needs the extra ``langchain``, which is langchain-core alone.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if find_spec("langchain_core") is None:
    raise ImportError("antiphon.integrations.langchain needs langchain-core; run: pip install 'antiphon[langchain]'")

if TYPE_CHECKING:
    from antiphon.integrations.langchain.chat import ChatAntiphon
    from antiphon.integrations.langchain.embeddings import AntiphonEmbeddings
    from antiphon.integrations.langchain.llm import AntiphonLLM
    from antiphon.integrations.langchain.passage_index import VectorStorePassages
    from antiphon.integrations.langchain.reranker import AntiphonReranker
    from antiphon.integrations.langchain.retriever import AntiphonRetriever
    from antiphon.integrations.langchain.vector_store import AntiphonVectorStore

_HOMES = {
    "AntiphonEmbeddings": "embeddings",
    "AntiphonLLM": "llm",
    "AntiphonReranker": "reranker",
    "AntiphonRetriever": "retriever",
    "AntiphonVectorStore": "vector_store",
    "ChatAntiphon": "chat",
    "VectorStorePassages": "passage_index",
}

__all__ = [
    "AntiphonEmbeddings",
    "AntiphonLLM",
    "AntiphonReranker",
    "AntiphonRetriever",
    "AntiphonVectorStore",
    "ChatAntiphon",
    "VectorStorePassages",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
