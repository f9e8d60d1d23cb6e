"""Retrieval: load documents, cut them into passages, embed, index, search and rerank. No language models.

Names are imported when they are first used, so that ``import antiphon.retrieval`` is cheap.
"""

from __future__ import annotations

import lazy_loader

from antiphon.accel.no_telemetry import opt_out

opt_out()
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
