"""LangChain's words for what Antiphon does: chat model, LLM, embeddings, vector store, retriever and reranker.

Names are imported when they are first used. Needs the extra ``langchain``, which is langchain-core alone.
"""

from __future__ import annotations

from importlib.util import find_spec

import lazy_loader

if find_spec("langchain_core") is None:
    raise ImportError("antiphon.integrations.langchain needs langchain-core; run: pip install 'antiphon[langchain]'")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
