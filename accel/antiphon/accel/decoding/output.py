"""The confirmed tokens of one request, and when it stops: end-of-sequence tokens, length, stop strings, criteria."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList

from antiphon.accel.decoding.stats import FinishReason


class TokenHistory:
    """Prompt and emitted tokens of one request, as a list for drafters and as a tensor for logits processors.

    Args:
        prompt: Token ids of the prompt, shape (1, length).

    Attributes:
        tokens: Prompt and emitted tokens as a list that only grows; drafters get it as their context.
    """

    def __init__(self, prompt: Tensor) -> None:
        self.tokens: list[int] = prompt[0].tolist()
        self._buffer = prompt
        self._filled = len(self.tokens)

    def append(self, token: int) -> None:
        """Append one confirmed token."""
        self.tokens.append(token)

    @property
    def ids(self) -> Tensor:
        """All tokens as a tensor of shape (1, length) on the prompt's device, built only when it is read."""
        length = len(self.tokens)
        if length > self._buffer.shape[1]:
            spare = self._buffer.new_empty((1, max(length, 256)))
            self._buffer = torch.cat([self._buffer[:, : self._filled], spare], dim=1)
        if length > self._filled:
            self._buffer[0, self._filled : length] = self._buffer.new_tensor(self.tokens[self._filled :])
            self._filled = length
        return self._buffer[:, :length]


class RequestOutput:
    """Appends emitted tokens to the history and decides after each one whether generation stops.

    Transformers evaluates its stopping criteria once per forward pass. Here they are evaluated after every accepted
    token, so a run of accepted tokens is cut exactly where plain decoding would have stopped. End-of-sequence tokens
    and the length are compared as integers; every other criterion is called with the ids, shape (1, length), and the
    scores so far.

    Args:
        criteria: The stopping criteria that `generate` prepared.
        scores: Returns the processed scores of the emitted tokens, each of shape (1, vocab), or None if not recorded.
    """

    def __init__(
        self, history: TokenHistory, criteria: StoppingCriteriaList, scores: Callable[[], tuple[Tensor, ...] | None]
    ) -> None:
        self.history = history
        self.finish: FinishReason | None = None
        self.scores = scores
        self.max_length = min((c.max_length for c in criteria if type(c) is MaxLengthCriteria), default=sys.maxsize)
        self.eos_tokens = {int(i) for c in criteria if type(c) is EosTokenCriteria for i in c.eos_token_id.flatten()}
        compared = (MaxLengthCriteria, EosTokenCriteria)
        self.other_criteria = StoppingCriteriaList([c for c in criteria if type(c) not in compared])

    @property
    def tokens(self) -> list[int]:
        """Prompt and emitted tokens."""
        return self.history.tokens

    @property
    def remaining_tokens(self) -> int:
        """Number of tokens that may still be emitted."""
        return max(self.max_length - len(self.history.tokens), 0)

    def commit(self, token: int) -> bool:
        """Append a token and return whether generation stops with it."""
        self.history.append(token)
        # Before the end-of-sequence check: plain decoding calls criteria for that token too, and they may keep counts.
        is_stopped = bool(self.other_criteria) and bool(self.other_criteria(self.history.ids, self.scores()).all())
        if is_stopped or token in self.eos_tokens:
            self.finish = "stop"
        elif not self.remaining_tokens:
            self.finish = "length"
        return self.finish is not None
