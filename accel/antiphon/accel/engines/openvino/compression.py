"""Weight compression of a graph to 8 or 4 bits with nncf. This changes the texts that the model generates."""

from __future__ import annotations

import logging
from contextlib import redirect_stdout
from importlib.metadata import version as version_of
from importlib.util import find_spec
from io import StringIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import openvino

GROUP_SIZE = 32
"""Number of 4-bit weights that share a scale. With 8 bits, all weights of an output row share one."""

MODES: dict[str, tuple[str, dict[str, Any]]] = {
    "int8": ("INT8_ASYM", {}),
    "int4": ("INT4_ASYM", {"group_size": GROUP_SIZE}),
}
"""nncf's name of each compression mode and its options. In 4-bit mode the embedding and the head keep 8 bits."""

MAX_DISTANCE = {"int8": 0.6, "int4": 1.05}
"""Largest allowed distance of the compressed model's logits from the original ones, in standard deviations.

After 40 random tokens SmolLM2's are 0.36 (int8) and 0.93 (int4) away, those of an unrelated model 1.13. Masks and
positions are checked more closely, with uncompressed weights.
"""


def is_installed() -> bool:
    """Return whether the package ``nncf`` is installed."""
    return find_spec("nncf") is not None


def version() -> str:
    """Return the version of nncf."""
    return version_of("nncf")


def compress(graph: openvino.Model, weights: str) -> openvino.Model:
    """Return the graph with compressed weights. The progress output of nncf is suppressed.

    Args:
        graph: The converted model.
        weights: "int8" or "int4".

    Raises:
        ImportError: nncf is not installed.
    """
    try:
        with redirect_stdout(StringIO()):
            import nncf
    except ImportError as error:
        raise ImportError("Compressed weights need nncf: pip install 'antiphon[int8]'") from error
    mode, options = MODES[weights]
    nncf.set_log_level(logging.ERROR)
    with redirect_stdout(StringIO()):
        return nncf.compress_weights(graph, mode=getattr(nncf.CompressWeightsMode, mode), **options)
