"""Drafters by the names of the command line: those of accel, and BiTA for the embedded SmolLM2."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from antiphon.accel import DrafterFactory
from antiphon.accel.drafting.drafters import BEFORE, BEHIND, DRAFTERS
from antiphon.accel.drafting.drafters import drafter_named as _named

SHIPPED = Path(__file__).parent / "smollm2-bita.safetensors"
"""What BiTA learned of SmolLM2-135M-Instruct, and refuses to show any other model."""

LEARNED = {
    "bita": str(SHIPPED),
    "blend+bita": f"{BEFORE}{SHIPPED}",
    "blend+bita+lookahead": f"{BEFORE}{SHIPPED}{BEHIND}",
}

NAMES = (*DRAFTERS, *LEARNED)
"""Every drafter that needs no file of your own."""


def resolve_drafter(name: str) -> DrafterFactory | Literal["auto"]:
    """The drafter of that name: one of ``NAMES``, or BiTA with a file that it learned (see `accel`'s).

    "auto" stays what it is: which one that is, only a model can tell.

    Raises:
        ValueError: there is none; the message names those that there are.
        FileNotFoundError: there is no such file.
    """
    return "auto" if name == "auto" else _named(LEARNED.get(name, name))
