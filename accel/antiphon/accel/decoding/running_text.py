"""One text that is being decoded, and who has a say in it. Knows nothing of what runs its forwards, or of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from antiphon.accel.decoding.stats import FinishReason
from antiphon.accel.drafting.budget import Budget
from antiphon.accel.drafting.draft import Drafter, Logits, Tokens
from antiphon.accel.engines.protocol import CachedSequence


class TokenChooser(Protocol):
    """Who says which token the model's logits mean."""

    def over(self, logits: Logits) -> Callable[[int], int]:
        """The token after each row of one forward."""


class Ending(Protocol):
    """What has been said, and whether it ends."""

    @property
    def tokens(self) -> list[int]:
        """Prompt and everything emitted so far."""

    @property
    def finish(self) -> FinishReason | None:
        """Why the text has ended, once it has."""

    @property
    def room(self) -> int:
        """How many more tokens fit."""

    def commit(self, token: int) -> bool:
        """Make the token part of the text; whether the text ends with it."""


@dataclass(eq=False, slots=True)
class Text:
    """One text that is being decoded, with everybody who has a say in it."""

    sequence: CachedSequence
    drafter: Drafter
    chooser: TokenChooser
    ending: Ending
    budget: Budget
    references: Sequence[Tokens] = ()
    chunk: int | None = None
    thread: int = 0  # whose it is
    is_begun: bool = False
    told: float = 0.0  # when its last step was
    absence: float = 0.0  # seconds until its reader came back for the one after it
    is_alone: bool = False  # a forward that it shared has failed: it takes the next one by itself
