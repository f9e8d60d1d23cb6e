"""Choose a request's tokens and decide when it ends. This module handles neither drafts nor text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import EosTokenCriteria, LogitsProcessorList, MaxLengthCriteria, StoppingCriteriaList

from antiphon.accel.decoding.engine_request import TokenOutput
from antiphon.accel.decoding.stats import Step, TokenLogprob
from antiphon.accel.drafting.draft import Logits

NO_TOKEN = (
    "probability tensor contains either `inf`, `nan` or element < 0: every token is forbidden by the request's logits "
    "processors, or the model's logits are not numbers."
)
"""Error message if every token is forbidden; it begins like torch's message on a CPU."""


class TokenHistory:
    """Prompt and emitted tokens of one request: a list for drafters, a tensor for logits processors.

    Args:
        prompt: Token ids of the prompt, shape (1, length).

    Attributes:
        tokens: Prompt and emitted tokens as a list that only grows; the context of drafters.
    """

    def __init__(self, prompt: Tensor) -> None:
        self.tokens: list[int] = prompt[0].tolist()
        self._buffer = prompt
        self._filled = len(self.tokens)

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


class Sampler:
    """Chooses tokens as transformers' `generate` does, but only at rows that verification visits.

    Logits processors get all tokens up to the row, shape (1, length), and float32 logits, shape (1, vocab). They are
    called in the order of plain decoding, so stateful processors stay correct. One random number is drawn per emitted
    token, so a seed gives the same text with and without drafts.

    Args:
        sample: Draw tokens; False: take the most likely one.
        generator: Source of random numbers; None: torch's global one.
        keep_scores: Collect the processed scores of every emitted token in ``scores``, each of shape (1, vocab).
        keep_logits: Collect the raw logits of every emitted token in ``logits``, each of shape (1, vocab).
    """

    def __init__(
        self,
        history: TokenHistory,
        processors: LogitsProcessorList,
        *,
        sample: bool = False,
        generator: torch.Generator | None = None,
        keep_scores: bool = False,
        keep_logits: bool = False,
    ) -> None:
        self.history = history
        self.processors: Any = processors  # the type stub declares a LongTensor
        self.sample = sample
        self.generator = generator
        self.scores: list[Tensor] | None = [] if keep_scores else None
        self.logits: list[Tensor] | None = [] if keep_logits else None

    @property
    def is_greedy(self) -> bool:
        """Whether the sampler only needs the most likely token of each row."""
        return not self.sample and not self.processors and self.scores is None and self.logits is None

    def bind(self, logits: Logits) -> Callable[[int], int]:
        """Return a function that maps a row of this forward pass to the model's next token after that row."""
        if self.is_greedy:
            return logits.argmax
        tensor = logits.tensor()
        return lambda row: self._choose(tensor[row + 1 : row + 2])

    @torch.no_grad()
    def _choose(self, row: Tensor) -> int:
        ids = self.history.ids
        raw = row.to(copy=True, dtype=torch.float32, device=ids.device)
        scores = self.processors(ids, raw)
        if self.scores is not None:
            self.scores.append(scores)
        if self.logits is not None:
            self.logits.append(raw)
        if not self.sample:
            return int(scores.argmax(dim=-1))
        probabilities = scores.softmax(dim=-1)
        if probabilities[0, 0].isnan():
            if scores.isposinf().any():  # an extreme penalty made a score infinite
                return int(scores.argmax(dim=-1))
            if scores.device.type != "cpu":  # a GPU's assertion would end all work of this process on it
                raise RuntimeError(NO_TOKEN)
        return int(torch.multinomial(probabilities, num_samples=1, generator=self.generator))


class RequestOutput(TokenOutput):
    """Appends emitted tokens to the history and decides after each one whether generation stops.

    Stopping criteria are evaluated after every accepted token and not once per forward pass, so accepted tokens are
    cut exactly where plain decoding stops. End-of-sequence tokens and the length are compared as integers; other
    criteria are called with the ids, shape (1, length), and the scores so far.

    Args:
        scores: Function that returns the processed scores of the emitted tokens, each of shape (1,
            vocab). It returns None if they are not recorded.
    """

    def __init__(
        self, history: TokenHistory, criteria: StoppingCriteriaList, scores: Callable[[], tuple[Tensor, ...] | None]
    ) -> None:
        max_length = min((c.max_length for c in criteria if type(c) is MaxLengthCriteria), default=sys.maxsize)
        eos_tokens = {int(i) for c in criteria if type(c) is EosTokenCriteria for i in c.eos_token_id.flatten()}
        super().__init__(history.tokens, max_length, eos_tokens)
        self.history = history
        self.scores = scores
        compared = (MaxLengthCriteria, EosTokenCriteria)
        self.other_criteria = StoppingCriteriaList([c for c in criteria if type(c) not in compared])

    def meets_criterion(self) -> bool:
        """Return whether a criterion other than the length and the end-of-sequence tokens is met."""
        return bool(self.other_criteria) and bool(self.other_criteria(self.history.ids, self.scores()).all())


def collect_logprobs(
    steps: Iterator[Step], logits: list[Tensor], count: int, logprobs: list[TokenLogprob]
) -> Iterator[Step]:
    """Yield the given steps, and append the log-probability of each emitted token to ``logprobs``.

    Args:
        logits: Raw logits of the last step's tokens, each of shape (1, vocab); cleared after each step.
        count: Number of most likely tokens to report for each token.
    """
    for step in steps:
        logprobs += [_logprob(*pair, count) for pair in zip(step.tokens, logits, strict=False)]
        logits.clear()
        yield step


def _logprob(token: int, row: Tensor, count: int) -> TokenLogprob:
    logprobs = row[0].float().log_softmax(dim=-1)
    values, tokens = logprobs.topk(min(count, logprobs.numel()))
    top = tuple(zip(tokens.tolist(), values.tolist(), strict=True))
    return TokenLogprob(token, float(logprobs[token]), top)
