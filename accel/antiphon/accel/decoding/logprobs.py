"""How probable each token was to the model. Knows no text and no drafts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from antiphon.accel.decoding.stats import Step


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token, the natural logarithm of its probability, and those of the most probable tokens, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def noting_logprobs(
    steps: Iterator[Step], logits: list[Tensor], count: int, found: list[TokenLogprob]
) -> Iterator[Step]:
    """The same steps; ``found`` gets one entry for each token, from the logits that it was chosen from.

    ``logits`` are those of the step, each of shape (1, vocab), and are let go of when they are read.
    """
    for step in steps:
        found += [_logprob(*pair, count) for pair in zip(step.tokens, logits, strict=False)]
        logits.clear()
        yield step


def _logprob(token: int, row: Tensor, count: int) -> TokenLogprob:
    logprobs = row[0].float().log_softmax(dim=-1)
    values, tokens = logprobs.topk(min(count, logprobs.numel()))
    top = tuple(zip(tokens.tolist(), values.tolist(), strict=True))
    return TokenLogprob(token, float(logprobs[token]), top)
