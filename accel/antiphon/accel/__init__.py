"""Faster generation with unchanged output, for unmodified causal models of Hugging Face.

This package works on tokens and texts, not on passages. Names are imported when they are first
used, so that ``import antiphon.accel`` is fast.
"""

from __future__ import annotations

import lazy_loader

from antiphon.accel.no_telemetry import opt_out

opt_out()
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
