"""Exact, faster generation for unmodified Hugging Face causal models. Knows tokens and text, and never passages."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.accel.certify import Certificate
    from antiphon.accel.completion import Origin
    from antiphon.accel.draft import EMPTY, ROOT, Accepted, Draft, Drafter, DrafterFactory
    from antiphon.accel.generate import Decoder, stream
    from antiphon.accel.growing import GrowingCache
    from antiphon.accel.language_model import Completion, Conversation, LanguageModel, Stream, Usage
    from antiphon.accel.prefix import PrefixCache
    from antiphon.accel.probe import traits_of
    from antiphon.accel.stats import Step, Summary, summarize
    from antiphon.accel.traits import Traits

_ROOMS = {
    "certify": ("Certificate",),
    "completion": ("Origin",),
    "draft": ("EMPTY", "ROOT", "Accepted", "Draft", "Drafter", "DrafterFactory"),
    "generate": ("Decoder", "stream"),
    "growing": ("GrowingCache",),
    "language_model": ("Completion", "Conversation", "LanguageModel", "Stream", "Usage"),
    "prefix": ("PrefixCache",),
    "probe": ("traits_of",),
    "stats": ("Step", "Summary", "summarize"),
    "traits": ("Traits",),
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "EMPTY",
    "ROOT",
    "Accepted",
    "Certificate",
    "Completion",
    "Conversation",
    "Decoder",
    "Draft",
    "Drafter",
    "DrafterFactory",
    "GrowingCache",
    "LanguageModel",
    "Origin",
    "PrefixCache",
    "Step",
    "Stream",
    "Summary",
    "Traits",
    "Usage",
    "stream",
    "summarize",
    "traits_of",
]


def __getattr__(name: str) -> Any:
    """Import a room when one of its names is asked for, so that `import antiphon.accel` alone costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
