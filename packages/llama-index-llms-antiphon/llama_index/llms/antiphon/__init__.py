"""LlamaIndex classes of Antiphon, which `antiphon.integrations.llama_index` implements."""

from antiphon.integrations.llama_index import (
    AntiphonChatEngine,
    AntiphonEmbedding,
    AntiphonLLM,
    AntiphonQueryEngine,
    AntiphonRerank,
    AntiphonRetriever,
    VectorStorePassages,
    citations_of,
    with_citations,
)

__all__ = [
    "AntiphonChatEngine",
    "AntiphonEmbedding",
    "AntiphonLLM",
    "AntiphonQueryEngine",
    "AntiphonRerank",
    "AntiphonRetriever",
    "VectorStorePassages",
    "citations_of",
    "with_citations",
]
