"""Who guesses what comes next: one file, one drafter."""

from __future__ import annotations

from functools import partial

from antiphon.accel.drafting.draft import DrafterFactory
from antiphon.accel.drafting.drafters.bita import Bita
from antiphon.accel.drafting.drafters.blend import Blend
from antiphon.accel.drafting.drafters.copying import Copying
from antiphon.accel.drafting.drafters.lookahead import Lookahead
from antiphon.accel.drafting.drafters.nothing import Nothing
from antiphon.accel.drafting.drafters.recycling import Recycling
from antiphon.accel.drafting.drafters.runners_up import RunnersUp
from antiphon.accel.drafting.drafters.together import WINDOW, Together
from antiphon.accel.drafting.drafters.trie import Trie

DRAFTERS: dict[str, DrafterFactory] = {
    "nothing": Nothing,
    "copying": Copying,
    "trie": Trie,
    "recycling": Recycling,
    "lookahead": Lookahead,
    "blend": Blend,
    "blend+lookahead": partial(Together, window=WINDOW),
}
"""Every drafter under the name that a command line gives it."""

LEARNED_FILE = "bita.safetensors"
"""What the file is called that BiTA learned: in the folder of its model the drafter "auto" finds it."""

BEFORE, BEHIND = "blend+", "+lookahead"
"""What stands before a file that BiTA learned where it drafts beside `Blend`, and behind it with Lookahead's window."""


def drafter_named(name: str) -> DrafterFactory:
    """The drafter of that name; the path of a file that BiTA learned (*.safetensors) gives BiTA.

    After "blend+" such a path gives both in one tree, and "+lookahead" behind that Lookahead's window as well.

    Raises:
        ValueError: there is none; the message names those that there are.
        FileNotFoundError: there is no such file.
    """
    beside = name.removeprefix(BEFORE) if name.startswith(BEFORE) else None
    file = name if beside is None else beside.removesuffix(BEHIND)
    if file.endswith(".safetensors"):
        from antiphon.accel.engines.torch.learned import Learned  # here, not above: it imports torch

        learned = Learned.load(file)
        if beside is None:
            return partial(Bita, learned)
        return partial(Together, learned, window=None if beside == file else WINDOW)
    if name not in DRAFTERS:
        raise ValueError(
            f"There is no drafter named {name!r}; choose one of {', '.join(DRAFTERS)}, or a file that BiTA learned."
        )
    return DRAFTERS[name]


__all__ = [
    "BEFORE",
    "BEHIND",
    "DRAFTERS",
    "LEARNED_FILE",
    "Bita",
    "Blend",
    "Copying",
    "Lookahead",
    "Nothing",
    "Recycling",
    "RunnersUp",
    "Together",
    "Trie",
    "drafter_named",
]
