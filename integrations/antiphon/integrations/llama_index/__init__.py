"""LlamaIndex classes: LLM, embedding, retriever, reranker, query and chat engine.

Names are imported on first use. The extra ``llama-index`` is needed; it installs llama-index-core
only.
"""

from __future__ import annotations

from importlib.util import find_spec

import lazy_loader

if find_spec("llama_index") is None or find_spec("llama_index.core") is None:
    raise ImportError(
        "antiphon.integrations.llama_index needs llama-index-core; run: pip install 'antiphon[llama-index]'"
    )

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
