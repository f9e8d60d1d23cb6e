"""The one door to OpenVINO: its package, where it is installed, and what this machine's CPU computes in."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import openvino

PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}
"""What a forward is computed in and what keys and values are kept in, by the model's own type."""


def is_installed() -> bool:
    """Whether the package is there."""
    return find_spec("openvino") is not None


@cache
def core() -> openvino.Core:
    """OpenVINO's entry point, with its CPU plug-in loaded: only that one knows paged attention.

    Raises:
        ImportError: OpenVINO is not installed.
    """
    try:
        import openvino
    except ImportError as error:
        raise ImportError("This engine needs OpenVINO: pip install 'antiphon[openvino]'") from error
    found = openvino.Core()
    found.get_property("CPU", "FULL_DEVICE_NAME")
    return found


def version() -> str:
    """The version of OpenVINO, with its build."""
    import openvino

    return str(openvino.__version__)


def computes_in(precision: str) -> bool:
    """Whether this CPU has units for it; every CPU has those for float32."""
    return precision == "f32" or precision.upper() in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
