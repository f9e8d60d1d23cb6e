"""Store hidden states of accepted rows until a draft head takes them. No framework is imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antiphon.accel.drafting.drafters.head import HiddenStates

MAX_TOKENS = 4096
"""Maximum number of tokens whose hidden states are held; a head hardly needs older states."""


class KeptStates:
    """Collects the hidden states of one sequence's accepted rows; rejected rows are never copied.

    Args:
        layers: Indices of the hidden states to collect; if empty, nothing is collected.
    """

    def __init__(self, layers: tuple[int, ...] = ()) -> None:
        self.layers = layers
        self._computed: tuple[Any, ...] = ()
        self._kept: list[HiddenStates] = []

    def note(self, states: Sequence[Any]) -> None:
        """Note the states of the last forward pass: one array of shape (rows, hidden) for each of ``layers``."""
        self._computed = tuple(states)

    def keep(self, start: int, rows: Sequence[int]) -> None:
        """Copy the states of some rows of the last pass; ``start`` is the first row's position."""
        if self._computed:
            newest = rows[-MAX_TOKENS:]
            states = tuple(each[list(newest)] for each in self._computed)
            self._kept.append(HiddenStates(start + len(rows) - len(newest), states))
            while sum(len(part.layers[0]) for part in self._kept[1:]) >= MAX_TOKENS:
                del self._kept[0]
        self._computed = ()

    def take(self) -> list[HiddenStates]:
        """Return the states of all rows that were kept since the last call of this method."""
        taken, self._kept = self._kept, []
        return taken
