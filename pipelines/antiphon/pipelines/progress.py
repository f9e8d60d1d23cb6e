"""The type of functions that long work reports its progress to. Knows neither the work nor how progress is shown."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called as ``progress(stage, done, total)`` when a stage of the work begins or advances."""
