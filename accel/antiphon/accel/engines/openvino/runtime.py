"""Access to the OpenVINO package: installation, core object, and precisions of this CPU."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.accel.engines.openvino.state_operations import STATE_FUNCTIONS, state_operation
from antiphon.accel.processor import instruction_limit

if TYPE_CHECKING:
    import openvino

PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}
"""Precision of the forward pass and of the KV cache, by the dtype of the model."""


def is_installed() -> bool:
    """Return whether the package ``openvino`` is installed."""
    return find_spec("openvino") is not None


HUGE_PAGE = 2**21
MADV_HUGEPAGE, MADV_COLLAPSE = 14, 25
"""Advice numbers of Linux: use huge pages for a range; move it to huge pages now (since Linux 6.1)."""

ANONYMOUS = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw-p \S+ 00:00 0[ \t]*(?:\[heap\]|\[anon.*\])?$", flags=re.MULTILINE)
"""A line of /proc/self/maps about memory that belongs to no file. Blocks below 32 MB are often in the heap."""


@cache
def core() -> openvino.Core:
    """Return OpenVINO's core object with the CPU plug-in, the only plug-in with paged attention.

    Raises:
        ImportError: OpenVINO is not installed.
    """
    try:
        import openvino
    except ImportError as error:
        raise ImportError("This engine needs OpenVINO: pip install openvino") from error
    found = openvino.Core()
    found.get_property("CPU", "FULL_DEVICE_NAME")  # loads the plug-in
    for name in STATE_FUNCTIONS:
        found.add_extension(state_operation(name))
    return found


def version() -> str:
    """Return the version of OpenVINO, including the build number."""
    import openvino

    return str(openvino.__version__)


def cpu_name() -> str:
    """Return the name of this CPU, as OpenVINO reports it, with `instruction_limit`."""
    return str(core().get_property("CPU", "FULL_DEVICE_NAME")) + instruction_limit()


def supports_precision(precision: str) -> bool:
    """Return whether this CPU has instructions for a precision ("f32" or "bf16"); every CPU has them for float32."""
    return precision == "f32" or precision.upper() in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def return_freed_memory() -> None:
    """Return freed memory to the system. Otherwise glibc would keep what conversion and self-test have freed."""
    if sys.platform == "linux":
        with suppress(AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)


def use_huge_pages() -> None:
    """Move large memory blocks of this process, such as packed weights, to pages of 2 MiB if Linux allows it.

    A step reads all weights once. With pages of 4 KiB, address translation takes a tenth of the step's time or more
    (0.5 billion weights in bfloat16, Xeon with AMX: 46 ms with large pages instead of 53). Moving takes two seconds
    per gigabyte; other threads continue meanwhile.
    """
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):  # no /proc, or another C library
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for start, size in _large_blocks():
            if madvise(start, size, MADV_HUGEPAGE) == 0:
                madvise(start, size, MADV_COLLAPSE)  # an error changes nothing


def _large_blocks() -> Iterator[tuple[int, int]]:
    """Yield, for each memory block that belongs to no file, the address and the size of its complete huge pages."""
    for found in ANONYMOUS.finditer(Path("/proc/self/maps").read_text(encoding="ascii", errors="replace")):
        first, end = (int(each, 16) for each in found.groups())
        start = -(-first // HUGE_PAGE) * HUGE_PAGE
        if (size := (end - start) // HUGE_PAGE * HUGE_PAGE) > 0:
            yield start, size
