"""Exact, faster generation for unmodified Hugging Face causal models. Works on tokens and text, not passages.

Names are imported when they are first used, so that ``import antiphon.accel`` costs nothing.
"""

from __future__ import annotations

import lazy_loader

from antiphon.accel.no_telemetry import opt_out

opt_out()
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
