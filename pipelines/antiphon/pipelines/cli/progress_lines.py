"""Progress where nothing can be drawn: a line after each few seconds, whatever the work is doing. Knows no work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType


class ProgressLines:
    """While it is open, says by ``say`` after each ``every`` seconds which stage the work has reached.

    A thread of its own speaks, so that a long step between two updates is not silent.
    """

    def __init__(self, say: Callable[[str], None], *, every: float) -> None:
        self._say = say
        self._every = every
        self._state: tuple[str, int, int] | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._speak, name="progress", daemon=True)

    def update(self, stage: str, done: int, total: int) -> None:
        """What is being done, and how much of it is."""
        self._state = stage, done, total

    def __enter__(self) -> ProgressLines:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _speak(self) -> None:
        began = time.monotonic()
        while not self._is_over.wait(self._every):
            if self._state is not None:
                stage, done, total = self._state
                self._say(f"{stage}: {done} of {total}, {time.monotonic() - began:.0f} s")
