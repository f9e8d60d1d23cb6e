"""Log-probabilities of emitted tokens. Independent of text and drafts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from antiphon.accel.decoding.stats import Step

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log-probability of one emitted token.

    Attributes:
        token: The token id.
        logprob: Natural logarithm of its probability.
        top: The most likely tokens with their log-probabilities, best first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def collect_logprobs(
    steps: Iterator[Step], logits: list[Tensor], count: int, logprobs: list[TokenLogprob]
) -> Iterator[Step]:
    """Yield the same steps and append the log-probability of each emitted token to ``logprobs``.

    Args:
        logits: Raw logits of the last step's tokens, each of shape (1, vocab); cleared after each step.
        count: Number of most likely tokens to report for each token.
        logprobs: List that is filled.
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
