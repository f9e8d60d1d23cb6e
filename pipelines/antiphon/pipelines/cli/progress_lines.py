"""Progress as lines of text, for outputs that are not a terminal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType


class ProgressLines:
    """Prints the current stage at regular intervals while it is open.

    It prints from a thread, so that lines also appear when a step takes longer than the interval.

    Args:
        every: Interval in seconds.
    """

    def __init__(self, write: Callable[[str], None], *, every: float) -> None:
        self._write = write
        self._every = every
        self._state: tuple[str, int, int] | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def update(self, stage: str, done: int, total: int) -> None:
        """Set the current stage, the number of items done, and their total; a total of 0 is ignored."""
        if total:
            self._state = stage, done, total

    def __enter__(self) -> ProgressLines:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._is_over.wait(self._every):
            if self._state is not None:
                stage, done, total = self._state
                self._write(f"{stage}: {done} of {total}, {time.monotonic() - began:.0f} s")
