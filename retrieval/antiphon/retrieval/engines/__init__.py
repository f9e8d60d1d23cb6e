"""Passages in somebody else's server, behind the same retriever. Each client is imported when it is first used."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
