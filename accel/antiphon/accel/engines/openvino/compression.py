"""Weights of 8 or 4 bits: what nncf makes of a graph. That is another model, for whoever asks for it by name."""

from __future__ import annotations

import logging
from contextlib import redirect_stdout
from importlib.metadata import version as version_of
from importlib.util import find_spec
from io import StringIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import openvino

GROUP = 32
"""Weights that share a scale, where they have 4 bits; those of 8 share it along a whole row."""

MODES: dict[str, tuple[str, dict[str, Any]]] = {
    "int8": ("INT8_ASYM", {}),
    "int4": ("INT4_ASYM", {"group_size": GROUP}),
}
"""nncf's names; with 4 bits the embedding and the head keep 8."""

APART = {"int8": 0.6, "int4": 1.05}
"""How far the logits may be from those of the whole weights, in standard deviations. SmolLM2's are 0.36 and 0.93 apart
after 40 random tokens, those of another model 1.13; masks are tried with the whole weights."""


def is_installed() -> bool:
    """Whether nncf is there."""
    return find_spec("nncf") is not None


def version() -> str:
    """The version of nncf."""
    return version_of("nncf")


def compressed(graph: openvino.Model, weights: str) -> openvino.Model:
    """The graph with weights of so many bits; nncf tells the terminal nothing of it.

    Raises:
        ImportError: nncf is not installed; says the command.
    """
    try:
        with redirect_stdout(StringIO()):
            import nncf
    except ImportError as error:
        raise ImportError("Weights of 8 and 4 bits need nncf: pip install 'antiphon[int8]'") from error
    mode, options = MODES[weights]
    nncf.set_log_level(logging.ERROR)
    with redirect_stdout(StringIO()):
        return nncf.compress_weights(graph, mode=getattr(nncf.CompressWeightsMode, mode), **options)
