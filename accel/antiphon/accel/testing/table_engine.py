"""An engine without a model: a function says which token follows a text. Real in all but size; imports no torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from antiphon.accel.decoding.stats import FinishReason
from antiphon.accel.drafting.cost_model import CostModel
from antiphon.accel.drafting.draft import Draft, Logits, Tokens, path_to, trim
from antiphon.accel.engines.fair_lock import FairLock
from antiphon.accel.engines.numpy_logits import NumpyLogits
from antiphon.accel.engines.protocol import CachedSequence, Level, SequenceInput

__all__ = ["GreedySampler", "TableOutput", "TableEngine", "TableSequence"]


class TableSequence:
    """The tokens of one text that were read; rows of a draft are held until ``keep``, as in a cache."""

    level: Level = "tree"
    can_batch = True

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.is_prefilled = False
        self._fed: tuple[Tokens, Draft] | None = None

    @property
    def length(self) -> int:
        """How many tokens are held."""
        return len(self.tokens)

    def can_draft_at_prefill(self, context: Tokens) -> bool:
        """Wherever there is a token to read before the last one."""
        return len(context) > self.length + 1

    def fit(self, draft: Draft, rows: int, depth: int, pending: int = 1) -> Draft:
        """The likeliest rows of it."""
        return trim(draft, rows, depth, sys.maxsize)

    def feed(self, pending: Tokens, draft: Draft) -> None:
        """Read tokens and the rows of a draft.

        Raises:
            RuntimeError: the rows of the forward before are still there.
        """
        if self._fed is not None:
            raise RuntimeError("A forward began before the rows of the last one were kept or forgotten.")
        self.is_prefilled = True
        self._fed = (tuple(pending), draft)

    def keep(self, path: Sequence[int]) -> None:
        """Hold the pending tokens and the rows of the path."""
        pending, draft = self._fed or ((), Draft())
        self.tokens += [*pending, *(draft.tokens[row] for row in path)]
        self._fed = None

    def reset(self) -> None:
        """Forget everything."""
        self.tokens, self.is_prefilled, self._fed = [], False, None

    def is_evicted(self, context: Tokens) -> bool:
        """Never."""
        return False


class TableEngine:
    """Says of every text what ``follows`` it, a token below ``vocabulary``.

    ``forwards`` has the sequences of every forward, and ``watch`` is called with its feeds before it: what it raises,
    the forward raises.
    """

    def __init__(
        self,
        follows: Callable[[Tokens], int],
        vocabulary: int,
        *,
        batch_cost: CostModel | None = None,
        prefill_batch_tokens: int = 0,
        watch: Callable[[Sequence[SequenceInput]], None] = lambda feeds: None,
    ) -> None:
        self.follows = follows
        self.vocabulary = vocabulary
        self.batch_cost = batch_cost
        self.prefill_batch_tokens = prefill_batch_tokens
        self.watch = watch
        self.lock = FairLock()
        self.scheduler: object | None = None
        self.forwards: list[list[CachedSequence]] = []

    def forward(self, feeds: Sequence[SequenceInput]) -> list[Logits]:
        """The logits of each text: one for the token that follows, and zero for all others.

        Raises:
            RuntimeError: whoever calls does not hold the lock.
        """
        if not self.lock.is_held:
            raise RuntimeError("A forward has to be run by whoever holds the engine's lock.")
        self.forwards.append([feed.sequence for feed in feeds])
        for feed in feeds:
            cast(TableSequence, feed.sequence).feed(feed.pending, feed.draft)
        self.watch(feeds)
        return [self._logits(feed) for feed in feeds]

    def _logits(self, feed: SequenceInput) -> Logits:
        held = [*cast(TableSequence, feed.sequence).tokens, *feed.pending]
        rows = np.zeros((1 + len(feed.draft), self.vocabulary), dtype=np.float32)
        for row in range(-1, len(feed.draft)):
            path = [feed.draft.tokens[each] for each in path_to(feed.draft, row)]
            rows[row + 1, self.follows([*held, *path])] = 1.0
        return NumpyLogits(rows)


class TableOutput:
    """A text that grows from a prompt until it has so many new tokens, or one of ``ends``."""

    def __init__(self, prompt: Tokens, new_tokens: int, ends: Sequence[int] = ()) -> None:
        self.tokens = list(prompt)
        self.finish: FinishReason | None = None
        self._longest = len(prompt) + new_tokens
        self._ends = frozenset(ends)

    @property
    def remaining_tokens(self) -> int:
        """Number of tokens that may still be emitted."""
        return self._longest - len(self.tokens)

    def commit(self, token: int) -> bool:
        """Make the token part of the text; whether the text ends with it."""
        self.tokens.append(token)
        if token in self._ends:
            self.finish = "stop"
        elif not self.remaining_tokens:
            self.finish = "length"
        return self.finish is not None


class GreedySampler:
    """Chooses the likeliest token after every row."""

    def bind(self, logits: Logits) -> Callable[[int], int]:
        """See `antiphon.accel.decoding.running_request.TokenSampler`."""
        return logits.argmax
