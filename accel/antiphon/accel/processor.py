"""Name and instruction sets of the processor, as Linux reports them. Imports nothing from the package."""

from __future__ import annotations

import platform
import re
from functools import cache
from pathlib import Path

BFLOAT16 = ("avx512_bf16", "amx_bf16")
"""Instruction sets that multiply in bfloat16."""


def processor_name() -> str:
    """Return the processor's name from /proc/cpuinfo, or from `platform` on other systems."""
    named = re.search(r"^model name\s*: (.+)$", _cpuinfo(), flags=re.MULTILINE)
    return named[1].strip() if named else platform.processor() or platform.machine()


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
