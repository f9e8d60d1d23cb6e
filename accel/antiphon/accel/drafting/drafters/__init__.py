"""Who guesses what comes next: one file, one drafter."""

from __future__ import annotations

from functools import partial

from antiphon.accel.drafting.draft import DrafterFactory
from antiphon.accel.drafting.drafters.bita import Bita, MaskWeights
from antiphon.accel.drafting.drafters.blend import WINDOW, Blend, WindowSize
from antiphon.accel.drafting.drafters.copying import Copying
from antiphon.accel.drafting.drafters.lookahead import Lookahead
from antiphon.accel.drafting.drafters.nothing import Nothing
from antiphon.accel.drafting.drafters.recycling import Recycling
from antiphon.accel.drafting.drafters.runners_up import RunnersUp
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
"""Every drafter that needs no trained weights, under the name that a command line gives it."""

BITA = "bita"
"""The name of the drafter that needs trained weights."""

BITA_FILE = "bita.safetensors"
"""What the file of BiTA's weights is called: in the folder of its model the drafter "auto" finds it."""

BITA_PLACES = (f"antiphon/{BITA_FILE}", BITA_FILE)
"""Where it looks there: first in a folder of our own, since vLLM takes every such file beside weights for weights."""


def make_drafter(
    name: str = "blend", *, bita: MaskWeights | None = None, window: WindowSize | None = None, reads: bool = True
) -> DrafterFactory:
    """A drafter by its name: one of `DRAFTERS`, or "bita", which needs its weights.

    ``bita`` adds BiTA's masks to "blend". ``window`` is the size of Lookahead's window, as columns, tokens of an
    n-gram and guesses: it adds one to "blend", and sets that of "lookahead", which with ``reads`` takes n-grams from
    prompt and references, too.

    Raises:
        ValueError: there is no such drafter, or it does not take an option that was given; the message says which do.
    """
    if name != BITA and name not in DRAFTERS:
        raise ValueError(f"There is no drafter named {name!r}; choose one of {', '.join(DRAFTERS)}, or {BITA}.")
    if bita is not None and name not in (BITA, "blend"):
        raise ValueError(f"BiTA's weights are for the drafters {BITA} and blend, and this is {name!r}; leave them out.")
    if window is not None and name not in ("lookahead", "blend"):
        raise ValueError(f"A window is for the drafters lookahead and blend, and this is {name!r}; leave it out.")
    if not reads and name != "lookahead":
        raise ValueError(f"Only lookahead can do without the n-grams of its texts, and this is {name!r}.")
    if name == BITA:
        if bita is None:
            raise ValueError("The drafter bita needs weights that were trained for the model: antiphon bita train.")
        return partial(Bita, bita)
    if name == "blend" and (bita is not None or window is not None):
        return partial(Blend, bita, window=window)
    if name == "lookahead" and (window is not None or not reads):
        return partial(Lookahead, *(window or ()), reads=reads)
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
    "RunnersUp",
    "SuffixMatch",
    "Trie",
    "WindowSize",
    "make_drafter",
]
