"""LangChain classes: chat model, LLM, embeddings, retriever and reranker.

Names are imported on first use. The extra ``langchain`` is needed; it installs langchain-core only.
"""

from __future__ import annotations

from importlib.util import find_spec

import lazy_loader

if find_spec("langchain_core") is None:
    raise ImportError("antiphon.integrations.langchain needs langchain-core; run: pip install 'antiphon[langchain]'")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
