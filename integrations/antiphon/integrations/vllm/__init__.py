"""Antiphon in vLLM: references and predictions of a request are what its drafts are copied from.

`Proposer` is what vLLM runs (``--speculative-config``), `references_for` what a client sends. Names are imported when
they are first used; neither needs vLLM to be imported.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
