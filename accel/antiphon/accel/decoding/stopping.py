"""When a text ends: end-of-sequence tokens, stop strings, custom criteria and the length, asked token by token."""

from __future__ import annotations

import sys
from collections.abc import Callable

from torch import Tensor
from transformers import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList

from antiphon.accel.decoding.stats import FinishReason
from antiphon.accel.decoding.transcript import Transcript


class Stop:
    """Commits tokens to the transcript and says after each whether generation ends there.

    Transformers asks its criteria once a forward; here every token of an accepted run is asked for, so a run is cut
    exactly where plain decoding would have ended. End-of-sequence tokens and the length are compared as integers,
    every other criterion is called with the ids of shape (1, length) and the scores so far.
    """

    def __init__(
        self, transcript: Transcript, criteria: StoppingCriteriaList, scores: Callable[[], tuple[Tensor, ...] | None]
    ) -> None:
        self.transcript = transcript
        self.finish: FinishReason | None = None
        self.scores = scores
        self.max_length = min((c.max_length for c in criteria if type(c) is MaxLengthCriteria), default=sys.maxsize)
        self.ends = {int(i) for c in criteria if type(c) is EosTokenCriteria for i in c.eos_token_id.flatten()}
        plain = (MaxLengthCriteria, EosTokenCriteria)
        self.others = StoppingCriteriaList([c for c in criteria if type(c) not in plain])

    @property
    def tokens(self) -> list[int]:
        """Prompt and everything emitted so far."""
        return self.transcript.tokens

    @property
    def room(self) -> int:
        """How many more tokens fit."""
        return max(self.max_length - len(self.transcript.tokens), 0)

    def commit(self, token: int) -> bool:
        """Make the token part of the text; whether the text ends with it."""
        self.transcript.append(token)
        # Asked first: plain decoding asks them about an end-of-sequence token too, and they may be counting.
        ended = bool(self.others) and bool(self.others(self.transcript.ids, self.scores()).all())
        if ended or token in self.ends:
            self.finish = "stop"
        elif not self.room:
            self.finish = "length"
        return self.finish is not None
