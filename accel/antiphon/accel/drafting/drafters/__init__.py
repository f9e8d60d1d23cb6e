"""Drafters propose draft trees from references, prompt and answer, or from the model's logits. One file per drafter."""

from __future__ import annotations

from functools import partial

from antiphon.accel.drafting.draft import DrafterFactory
from antiphon.accel.drafting.drafters.bita import Bita, MaskWeights
from antiphon.accel.drafting.drafters.blend import WINDOW, Blend, WindowSize
from antiphon.accel.drafting.drafters.copying import Copying
from antiphon.accel.drafting.drafters.lookahead import Lookahead
from antiphon.accel.drafting.drafters.nothing import Nothing
from antiphon.accel.drafting.drafters.recycling_table import Recycling, RecyclingTable
from antiphon.accel.drafting.drafters.suffix_match import SuffixMatch
from antiphon.accel.drafting.drafters.trie import Trie

DRAFTERS: dict[str, DrafterFactory] = {
    "nothing": Nothing,
    "copying": Copying,
    "trie": Trie,
    "recycling": Recycling,
    "lookahead": Lookahead,
    "blend": Blend,
}
"""Drafters that need no trained weights, by their names on the command line."""

BITA = "bita"
"""Name of the drafter that needs trained weights."""

BITA_FILE = "bita.safetensors"
"""File name of BiTA's weights; the drafter "auto" looks for it in the folder of the model."""

BITA_PLACES = (f"antiphon/{BITA_FILE}", BITA_FILE)
"""Paths of BiTA's weights in the model's folder, in the order in which "auto" tries them. The first
is in a subfolder, because vLLM would load a safetensors file next to the model's weights as
weights, too.
"""


def make_drafter(
    name: str = "blend",
    *,
    bita: MaskWeights | None = None,
    window: WindowSize | None = None,
) -> DrafterFactory:
    """Return the factory of the named drafter.

    Args:
        name: One of `DRAFTERS`, or "bita".
        bita: Weights of BiTA: required for "bita"; with "blend" they add BiTA's masks.
        window: Lookahead's W, N and G (columns, tokens of an n-gram, guesses), for "lookahead" and "blend".

    Raises:
        ValueError: There is no such drafter, or it does not support a given option.
    """
    if name != BITA and name not in DRAFTERS:
        raise ValueError(f"There is no drafter named {name!r}; choose one of {', '.join(DRAFTERS)}, or {BITA}.")
    if bita is not None and name not in (BITA, "blend"):
        raise ValueError(f"BiTA's weights are for the drafters {BITA} and blend, and this is {name!r}; leave them out.")
    if window is not None and name not in ("lookahead", "blend"):
        raise ValueError(f"A window is for the drafters lookahead and blend, and this is {name!r}; leave it out.")
    if name == BITA:
        if bita is None:
            raise ValueError("The drafter bita needs weights that were trained for the model, see recipes/bita.")
        return partial(Bita, bita)
    if name == "blend" and (bita is not None or window is not None):
        return partial(Blend, bita, window=window)
    if name == "lookahead" and window is not None:
        return partial(Lookahead, *window)
    return DRAFTERS[name]


__all__ = [
    "BITA",
    "BITA_FILE",
    "BITA_PLACES",
    "DRAFTERS",
    "WINDOW",
    "Bita",
    "Blend",
    "Copying",
    "Lookahead",
    "MaskWeights",
    "Nothing",
    "Recycling",
    "RecyclingTable",
    "SuffixMatch",
    "Trie",
    "WindowSize",
    "make_drafter",
]
