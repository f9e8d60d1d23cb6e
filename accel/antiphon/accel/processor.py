"""Read the processor's name, features and load. No other module of the package is imported."""

from __future__ import annotations

import os
import platform
import re
from functools import cache
from pathlib import Path
from time import perf_counter, sleep

BFLOAT16 = ("avx512_bf16", "amx_bf16")
"""Instruction sets that multiply in bfloat16."""


MAX_OTHERS, MIN_SECONDS = 0.1, 0.3
"""Maximum load (0 to 1) by other processes on a quiet machine; minimum seconds to measure it."""


class LoadMeter:
    """Measures the share of processor time that other processes use after the meter's creation."""

    def __init__(self) -> None:
        self._started, self._busy = perf_counter(), _seconds_of_others()

    def is_quiet(self, *, waits: bool = False) -> bool:
        """Return whether other processes have used little processor time; False if the meter is too new to tell.

        Args:
            waits: Wait until the meter is old enough to tell.
        """
        if waits:
            sleep(max(MIN_SECONDS - (perf_counter() - self._started), 0.0))
        used, elapsed = _seconds_of_others() - self._busy, perf_counter() - self._started
        return elapsed >= MIN_SECONDS and used <= MAX_OTHERS * elapsed * len(_processors())


def _processors() -> list[int]:
    """Return the numbers of the processors that this process may use."""
    import psutil

    own = getattr(psutil.Process(), "cpu_affinity", None)  # macOS has none
    return own() if own else list(range(psutil.cpu_count() or 1))


def _seconds_of_others() -> float:
    """Return the seconds that the processors have worked for other processes or other virtual machines."""
    import psutil

    times, own = psutil.cpu_times(percpu=True), psutil.Process().cpu_times()
    counted = ("user", "nice", "system", "irq", "softirq", "steal")
    busy = sum(getattr(times[number], name, 0.0) for number in _processors() for name in counted)
    return float(busy - own.user - own.system)


def processor_name() -> str:
    """Return the processor's name from /proc/cpuinfo, or from `platform` on other systems, with `instruction_limit`."""
    named = re.search(r"^model name\s*: (.+)$", _cpuinfo(), flags=re.MULTILINE)
    return (named[1].strip() if named else platform.processor() or platform.machine()) + instruction_limit()


def instruction_limit() -> str:
    """Return ", limited to AVX2" if oneDNN's environment variable limits matrix products to AVX2, else an empty text.

    Measured costs and results of such a process hold for the limited processor only.
    """
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "")
    return f", limited to {limit.upper()}" if limit else ""


def processor_flags() -> frozenset[str]:
    """Return the names of the processor's features from /proc/cpuinfo; empty on other systems."""
    flags = re.search(r"^flags\s*: (.+)$", _cpuinfo(), flags=re.MULTILINE)
    return frozenset(flags[1].split()) if flags else frozenset()


def has_bfloat16_units() -> bool:
    """Return whether the processor reports instructions for bfloat16; False on systems other than Linux."""
    return not processor_flags().isdisjoint(BFLOAT16)


@cache
def _cpuinfo() -> str:
    source = Path("/proc/cpuinfo")
    return source.read_text(encoding="utf-8") if source.is_file() else ""
