"""LangChain classes of Antiphon, which `antiphon.integrations.langchain` implements."""

from antiphon.integrations.langchain import (
    AntiphonEmbeddings,
    AntiphonLLM,
    AntiphonReranker,
    AntiphonRetriever,
    ChatAntiphon,
    CitationHandler,
    CitedAnswer,
    VectorStorePassages,
)

__all__ = [
    "AntiphonEmbeddings",
    "AntiphonLLM",
    "AntiphonReranker",
    "AntiphonRetriever",
    "ChatAntiphon",
    "CitationHandler",
    "CitedAnswer",
    "VectorStorePassages",
]
