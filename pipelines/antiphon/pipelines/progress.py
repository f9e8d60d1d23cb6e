"""How long work says how far it is. Knows neither the work nor who listens."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called as ``progress(stage, done, total)`` when a stage of the work begins or advances."""
