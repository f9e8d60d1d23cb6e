"""Compress the weights of a graph to 8 or 4 bits with nncf. This changes the texts that the model generates."""

from __future__ import annotations

import logging
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import openvino

GROUP_SIZE = 64
"""Number of 4-bit weights that share a scale. With 8 bits, there is one scale per output row.

On a Xeon with AMX, a plain step of a 1.5B model's layers takes 0.35 of the time in bfloat16 with
symmetric groups of 64 or 128, 0.5 with groups of 32, and 0.7 with groups of 32 and zero points. A
step of 16 rows takes 0.8, 1.1 and 1.4 of its time in bfloat16.
"""

MODES: dict[str, tuple[str, dict[str, Any]]] = {
    "int8": ("INT8_ASYM", {}),
    "int4": ("INT4_SYM", {"group_size": GROUP_SIZE}),
}
"""nncf's name of each compression mode and its options. In 4-bit mode the embedding and the head keep 8 bits."""

MAX_DISTANCE = {"int8": 0.5, "int4": 1.0}
"""Largest allowed mean distance of the compressed model's logits from the original ones, in standard deviations.

Small models are least certain after random tokens. After these, 4 bits change SmolLM2's logits by
0.2 to 0.65, and the logits of 8 billion random weights in 32 layers by 0.9. Logits of another text
differ by 1.1. Masks and positions are checked more closely, with uncompressed weights.
"""


def require_nncf() -> None:
    """Raise ImportError if the package ``nncf`` is not installed."""
    if find_spec("nncf") is None:
        raise ImportError("Compressed weights need nncf: pip install 'antiphon[int8]'.")


def compress(graph: openvino.Model, weights: str) -> openvino.Model:
    """Return the graph with compressed weights. The progress output of nncf is suppressed.

    Args:
        weights: "int8" or "int4".
    """
    with redirect_stdout(StringIO()):
        import nncf
    mode, options = MODES[weights]
    nncf.set_log_level(logging.ERROR)
    smaller_groups = nncf.AdvancedCompressionParameters(group_size_fallback_mode=nncf.GroupSizeFallbackMode.ADJUST)
    with redirect_stdout(StringIO()):
        return nncf.compress_weights(
            graph, mode=getattr(nncf.CompressWeightsMode, mode), advanced_parameters=smaller_groups, **options
        )
