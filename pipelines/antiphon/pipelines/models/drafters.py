"""Make drafters from command-line options, and load BiTA's weights from files."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from antiphon.accel import DrafterFactory
from antiphon.accel.drafting.drafters import BITA, WindowSize, make_drafter
from antiphon.accel.models.bundled import BITA_WEIGHTS

SMOLLM2 = "smollm2"
"""Name of the bundled file, in place of a path."""


def resolve_drafter(
    name: str, *, bita: str | Path | None = None, window: WindowSize | None = None
) -> DrafterFactory | Literal["auto"]:
    """Return the named drafter with these options; see `antiphon.accel.drafting.drafters.make_drafter`.

    Args:
        name: Name of the drafter. "auto" is returned as it is, because the choice depends on the model.
        bita: File of BiTA's weights, or "smollm2" for the bundled file. Default of the drafter "bita": the bundled
            file.

    Raises:
        ValueError: there is no such drafter, it does not support an option, or the file has no
            weights of BiTA.
        FileNotFoundError: there is no such file.
    """
    if name == "auto":
        if bita is not None or window is not None:
            raise ValueError("The drafter auto chooses its own options; leave out --bita and --lookahead.")
        return "auto"
    if bita is None and name == BITA:
        bita = BITA_WEIGHTS
    if bita is None:
        return make_drafter(name, window=window)
    from antiphon.accel.engines.torch.bita_weights import BitaWeights  # imported here because it imports torch

    return make_drafter(name, bita=BitaWeights.load(BITA_WEIGHTS if bita == SMOLLM2 else bita), window=window)


def window_size(text: str) -> WindowSize:
    """Parse the size of Lookahead's window: columns, tokens per n-gram, and guesses, such as "7,5,7".

    Raises:
        ValueError: ``text`` is not three numbers.
    """
    numbers = text.split(",")
    if len(numbers) != 3 or not all(number.isdigit() for number in numbers):
        raise ValueError(f"invalid window size {text!r}; give columns, n-gram and guesses: 7,5,7.")
    columns, ngram, guesses = map(int, numbers)
    return columns, ngram, guesses
