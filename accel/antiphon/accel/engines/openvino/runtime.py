"""Access to the OpenVINO package: installation, core object, and precisions of this CPU."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import openvino

PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}
"""Precision of the forward pass and of the KV cache, by the dtype of the model."""


def is_installed() -> bool:
    """Return whether the package ``openvino`` is installed."""
    return find_spec("openvino") is not None


@cache
def core() -> openvino.Core:
    """Return OpenVINO's core object, with the CPU plug-in loaded: no other plug-in has paged attention.

    Raises:
        ImportError: OpenVINO is not installed.
    """
    try:
        import openvino
    except ImportError as error:
        raise ImportError("This engine needs OpenVINO: pip install 'antiphon[openvino]'") from error
    found = openvino.Core()
    found.get_property("CPU", "FULL_DEVICE_NAME")  # loads the plug-in
    return found


def version() -> str:
    """Return the version of OpenVINO, with its build."""
    import openvino

    return str(openvino.__version__)


def cpu_name() -> str:
    """Return the name of this CPU, as OpenVINO reports it."""
    return str(core().get_property("CPU", "FULL_DEVICE_NAME"))


def supports_precision(precision: str) -> bool:
    """Return whether this CPU has instructions for a precision ("f32" or "bf16"); every CPU has them for float32."""
    return precision == "f32" or precision.upper() in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def return_freed_memory() -> None:
    """Return memory that conversion and self-test have freed to the system; glibc would keep it for this process."""
    if sys.platform == "linux":
        with suppress(AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)
