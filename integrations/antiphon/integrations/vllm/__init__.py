"""Antiphon's drafter for vLLM: it copies drafts from a request's references, prediction, prompt and answer.

The server runs `Proposer` (``--speculative-config``); clients call `references_for`. Names are imported when they are
first used. Importing them does not import vLLM.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
