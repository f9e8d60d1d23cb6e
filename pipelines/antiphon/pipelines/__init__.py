"""Retrieval-augmented generation: retrieves passages for a question and generates an answer that cites them.

Names are imported when they are first used, so that ``import antiphon.pipelines`` costs nothing.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
