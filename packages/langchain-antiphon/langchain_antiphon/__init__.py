"""LangChain classes of Antiphon, which `antiphon.integrations.langchain` implements.

Names are imported when they are first used: ReferencesMiddleware needs LangChain's agents, the others do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from antiphon.integrations import langchain as _implementation

if TYPE_CHECKING:
    from antiphon.integrations.langchain import AntiphonEmbeddings as AntiphonEmbeddings
    from antiphon.integrations.langchain import AntiphonLLM as AntiphonLLM
    from antiphon.integrations.langchain import AntiphonReranker as AntiphonReranker
    from antiphon.integrations.langchain import AntiphonRetriever as AntiphonRetriever
    from antiphon.integrations.langchain import ChatAntiphon as ChatAntiphon
    from antiphon.integrations.langchain import CitationHandler as CitationHandler
    from antiphon.integrations.langchain import CitedAnswer as CitedAnswer
    from antiphon.integrations.langchain import ReferencesMiddleware as ReferencesMiddleware
    from antiphon.integrations.langchain import VectorStorePassages as VectorStorePassages

__all__ = list(vars(_implementation)["__all__"])


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(_implementation, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
