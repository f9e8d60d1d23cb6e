"""What one forward added to a text, as it is drawn. Knows no model and no medium."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """What one forward added to the text: the tokens a draft had guessed, and the model's own one after them.

    ``step`` counts forwards from 1, the prefill; ``tokens`` counts also those that are no text. ``own`` is empty where
    the text ended before it.
    """

    step: int
    tokens: int
    drafted: str
    own: str
