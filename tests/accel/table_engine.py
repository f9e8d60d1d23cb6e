"""A minimal engine without a model: a function returns the next token of a text. Imports no torch.

It implements `antiphon.accel.engines.protocol.Engine` completely, as an example and for tests of the scheduler.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from random import Random
from threading import get_ident
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from antiphon.accel.decoding.stats import FinishReason, Step
from antiphon.accel.decoding.step import Request
from antiphon.accel.drafting.budget import FixedBudget
from antiphon.accel.drafting.cost_model import CostModel, StepCost
from antiphon.accel.drafting.draft import Draft, Drafter, Logits, Tokens, path_to, trim
from antiphon.accel.drafting.drafters import Nothing
from antiphon.accel.engines.fair_lock import FairLock
from antiphon.accel.engines.protocol import CachedSequence, KeptStates, Level, SequenceInput, ThreadSettings

__all__ = [
    "GreedySampler",
    "TableEngine",
    "TableOutput",
    "TableSequence",
    "emitted",
    "engine",
    "prompt_of",
    "request_of",
    "truth",
]


class TableSequence:
    """The cached tokens of one sequence. Implements `antiphon.accel.engines.protocol.CachedSequence`."""

    level: Level = "tree"
    can_batch = True
    hidden_states = KeptStates()

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.is_prefilled = False
        self._input: tuple[Tokens, Draft] | None = None

    @property
    def length(self) -> int:
        """Number of cached tokens."""
        return len(self.tokens)

    def can_draft_at_prefill(self, context: Tokens) -> bool:
        """Return whether there is an uncached token before the last one."""
        return len(context) > self.length + 1

    def fit(self, draft: Draft, rows: int, depth: int, pending: int = 1) -> Draft:
        """Return the most likely rows of the draft; this engine verifies any tree."""
        return trim(draft, rows, depth, sys.maxsize)

    def begin_forward(self, pending: Tokens, draft: Draft) -> None:
        """Store the rows of a forward pass until `keep` is called.

        Raises:
            RuntimeError: `keep` was not called after the previous forward pass.
        """
        if self._input is not None:
            raise RuntimeError("A forward pass started before the rows of the previous one were kept; call keep first.")
        self.is_prefilled = True
        self._input = (tuple(pending), draft)

    def keep(self, path: Sequence[int]) -> None:
        """Cache the pending tokens and the rows of the path."""
        pending, draft = self._input or ((), Draft())
        self.tokens += [*pending, *(draft.tokens[row] for row in path)]
        self._input = None

    def discard(self) -> None:
        """Cache nothing of the last forward pass."""
        self._input = None

    def reset(self) -> None:
        """Drop everything."""
        self.tokens, self.is_prefilled, self._input = [], False, None

    def is_evicted(self, context: Tokens) -> bool:
        """Return False: this engine evicts nothing."""
        return False


class TableLogits:
    """Logits of shape (1 + rows, vocab) in numpy. Implements `antiphon.accel.drafting.draft.Logits`."""

    def __init__(self, array: NDArray[np.float32]) -> None:
        self.array = array
        self.vocab_size = array.shape[1]

    def __len__(self) -> int:
        return len(self.array)

    def argmax(self, row: int) -> int:
        """Return the most likely token after a row."""
        return int(self.array[row + 1].argmax())

    def top_k(self, rows: Sequence[int], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the ``k`` most likely tokens after each row, and their probabilities."""
        chances = np.exp(self.array[[row + 1 for row in rows]])
        tokens = np.argsort(-chances, axis=1, kind="stable")[:, :k]
        return tokens, np.take_along_axis(chances / chances.sum(1, keepdims=True), tokens, 1)

    def head(self, rows: int) -> TableLogits:
        """Return the logits after the root and the first rows."""
        return TableLogits(self.array[: 1 + rows])

    def tensor(self) -> Any:
        """Return the logits as a tensor of torch."""
        import torch

        return torch.from_numpy(self.array)


class TableEngine:
    """An engine whose model is a Python function.

    Attributes:
        forwards: The sequences of every forward pass.
    """

    def __init__(
        self,
        follows: Callable[[Tokens], int],
        vocab_size: int,
        *,
        batch_cost: CostModel | None = None,
        prefill_batch_tokens: int = 0,
        watch: Callable[[Sequence[SequenceInput]], None] = lambda inputs: None,
    ) -> None:
        self.follows = follows
        self.vocab_size = vocab_size
        self.batch_cost = batch_cost
        self.prefill_batch_tokens = prefill_batch_tokens
        self.watch = watch
        self.lock = FairLock()
        self.scheduler: object | None = None
        self.forwards: list[list[CachedSequence]] = []

    def thread_settings(self) -> ThreadSettings:
        """Return the defaults: this engine has no settings of threads."""
        return ThreadSettings()

    def thread_context(self, settings: ThreadSettings) -> AbstractContextManager[None]:
        """Return a context that changes nothing."""
        return nullcontext()

    def forward(self, inputs: Sequence[SequenceInput], /) -> list[Logits]:
        """Return logits of 1 for the token that follows each row, and 0 for all others."""
        if self.lock._holder != get_ident():
            raise RuntimeError("The calling thread does not hold the engine's lock; use lock.run.")
        self.forwards.append([each.sequence for each in inputs])
        for each in inputs:
            cast(TableSequence, each.sequence).begin_forward(each.pending, each.draft)
        self.watch(inputs)
        return [self._logits(each) for each in inputs]

    def _logits(self, given: SequenceInput) -> Logits:
        context = [*cast(TableSequence, given.sequence).tokens, *given.pending]
        rows = np.zeros((1 + len(given.draft), self.vocab_size), dtype=np.float32)
        for row in range(-1, len(given.draft)):
            path = [given.draft.tokens[each] for each in path_to(given.draft, row)]
            rows[row + 1, self.follows([*context, *path])] = 1.0
        return TableLogits(rows)


class TableOutput:
    """The tokens of a request. Implements `antiphon.accel.decoding.step.Output`."""

    def __init__(self, prompt: Tokens, new_tokens: int, ends: Sequence[int] = ()) -> None:
        self.tokens = list(prompt)
        self.finish: FinishReason | None = None
        self._max_length = len(prompt) + new_tokens
        self._ends = frozenset(ends)

    @property
    def remaining_tokens(self) -> int:
        """Number of tokens that may still be emitted."""
        return self._max_length - len(self.tokens)

    def commit(self, token: int) -> bool:
        """Append a token and return whether generation stops with it."""
        self.tokens.append(token)
        if token in self._ends:
            self.finish = "stop"
        elif not self.remaining_tokens:
            self.finish = "length"
        return self.finish is not None


class GreedySampler:
    """Chooses the most likely token after every row."""

    is_greedy = True

    def bind(self, logits: Logits) -> Callable[[int], int]:
        """See `antiphon.accel.decoding.step.TokenSampler.bind`."""
        return logits.argmax


VOCAB_SIZE = 50
FLAT = CostModel(StepCost({64: {1: 1.0, 64: 1.1}}), learns=False)
"""Additional rows cost almost nothing, so sharing forward passes is always faster."""


def follows(tokens: Tokens) -> int:
    """Return the token that follows in the texts of the scheduler's tests."""
    return (31 * tokens[-1] + 17 * tokens[-2] + 7 * len(tokens)) % VOCAB_SIZE


def truth(prompt: Tokens, new_tokens: int) -> list[int]:
    """Return a prompt and the tokens that follow it."""
    tokens = list(prompt)
    for _ in range(new_tokens):
        tokens.append(follows(tokens))
    return tokens


def prompt_of(seed: int, length: int = 12) -> list[int]:
    random = Random(seed)
    return [random.randrange(VOCAB_SIZE) for _ in range(length)]


def request_of(prompt: Tokens, new_tokens: int, drafter: Drafter | None = None, rows: int = 16) -> Request:
    return Request(
        TableSequence(), drafter or Nothing(), GreedySampler(), TableOutput(prompt, new_tokens), FixedBudget(rows)
    )


def engine(kind: type[TableEngine] = TableEngine, **options: Any) -> TableEngine:
    return kind(follows, VOCAB_SIZE, **({"batch_cost": FLAT} | options))


def emitted(steps: Sequence[Step]) -> list[int]:
    return [token for step in steps for token in step.tokens]
