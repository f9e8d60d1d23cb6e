"""Measures times as users experience them: from the start of a command or question to the first output and the end."""

from __future__ import annotations

import os
import time
from pathlib import Path

_MAX_STARTING_SECONDS = 60  # an older process runs more than this command


class Stopwatch:
    """Measures the seconds until the first output and until the end.

    Args:
        before: Seconds to add for the time before the stopwatch was created, such as
            `seconds_since_process_start`.
    """

    def __init__(self, before: float = 0.0) -> None:
        self._started = time.perf_counter() - before
        self._first: float | None = None

    def mark_first_output(self) -> None:
        """Record the time of the first output; later calls change nothing."""
        if self._first is None:
            self._first = time.perf_counter() - self._started

    def describe(self) -> str:
        """Return the times until now as text."""
        seconds = time.perf_counter() - self._started
        first = seconds if self._first is None else self._first
        return f"first output after {first:.1f} s, {seconds:.1f} s in all"


def seconds_since_process_start() -> float:
    """Return the seconds since this process started; 0 if they are unknown or the process is a server."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # field 22 of proc(5): ticks from the start of the system
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
    return age if 0 <= age <= _MAX_STARTING_SECONDS else 0.0
