"""Drafters by the options of the command line: those of accel, and BiTA's weights from files."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from antiphon.accel import DrafterFactory
from antiphon.accel.drafting.drafters import BITA, WindowSize, make_drafter

SHIPPED = Path(__file__).parent / "smollm2-bita.safetensors"
"""BiTA's weights for SmolLM2-135M-Instruct, which are refused by any other model."""

SMOLLM2 = "smollm2"
"""Given for a file of BiTA's weights: the one that is shipped."""


def resolve_drafter(
    name: str, *, bita: str | Path | None = None, window: WindowSize | None = None
) -> DrafterFactory | Literal["auto"]:
    """The drafter of that name with these options: see `antiphon.accel.drafting.drafters.make_drafter`.

    ``bita`` is a file of BiTA's weights, or "smollm2" for the one that is shipped, which the drafter "bita" takes by
    default. "auto" stays what it is, for only a model can tell which drafter that is; it takes no options.

    Raises:
        ValueError: there is no such drafter, or it does not take an option; or the file holds no such weights.
        FileNotFoundError: there is no such file.
    """
    if name == "auto":
        if bita is not None or window is not None:
            raise ValueError("The drafter auto chooses for itself; give it no --bita and no --lookahead.")
        return "auto"
    if bita is None and name == BITA:
        bita = SHIPPED
    if bita is None:
        return make_drafter(name, window=window)
    from antiphon.accel.engines.torch.bita_weights import BitaWeights  # here, not above: it imports torch

    return make_drafter(name, bita=BitaWeights.load(SHIPPED if bita == SMOLLM2 else bita), window=window)


def window_size(text: str) -> WindowSize:
    """The size of Lookahead's window in words of a command line: columns, tokens of an n-gram, guesses, as "7,5,7".

    Raises:
        ValueError: it is not three numbers.
    """
    numbers = text.split(",")
    if len(numbers) != 3 or not all(number.isdigit() for number in numbers):
        raise ValueError(f"{text!r} is no size of lookahead's window; give columns, n-gram and guesses: 7,5,7.")
    columns, ngram, guesses = map(int, numbers)
    return columns, ngram, guesses
