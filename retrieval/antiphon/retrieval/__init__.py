"""Question in, passages out: load, chunk, embed, store, search, rerank. Knows nothing of language models.

Names are imported when they are first used, so that ``import antiphon.retrieval`` costs nothing.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
