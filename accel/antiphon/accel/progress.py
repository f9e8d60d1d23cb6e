"""Progress of long operations: the type of a progress callback, and a callback that does nothing."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called as ``progress(stage, done, total)`` when a stage starts or advances."""


def ignore_progress(stage: str, done: int, total: int) -> None:
    """Do nothing. This is the progress callback for callers that pass none."""
