"""The best tokens of every row of logits, without sorting them all. Knows neither drafts nor how a token is chosen."""

from __future__ import annotations

from math import gcd

import torch
from torch import Tensor

_STRIPS = 64


def argmax(logits: Tensor) -> Tensor:
    """The best token of each row, of equal ones the first, as `Tensor.argmax` finds it; of shape (rows,).

    First the best strip, then the best token of it: the largest number is found faster than its place. At 33 rows of
    49,152 tokens on a CPU this takes a fifth of the time in float32, and a ninth in bfloat16.
    """
    rows, vocabulary = logits.shape
    width = vocabulary // gcd(vocabulary, _STRIPS)
    page = logits.reshape(rows, vocabulary // width, width)
    strip = page.amax(2).argmax(1)
    inside = page.gather(1, strip[:, None, None].expand(-1, 1, width))[:, 0].argmax(1)
    return strip * width + inside


def best(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ``k`` best tokens of each row, best first, and their probabilities as float32; both of shape (rows, k).

    A row lies in strips, one below the other, as lines of a page: its ``k`` best tokens stand in the ``k`` columns
    whose own best are the best, so few remain to be sorted. At 33 rows of 49,152 tokens on a CPU this takes an eighth
    of the time of `topk` and `logsumexp`. The probabilities are shares of the columns' best tokens, not of all tokens,
    and therefore a little too large.
    """
    rows, vocabulary = logits.shape
    strips = gcd(vocabulary, _STRIPS) if vocabulary >= _STRIPS * k else 1
    page = logits.reshape(rows, strips, -1)
    heads = page.amax(1)
    columns = heads.topk(k).indices
    found = page.gather(2, columns[:, None].expand(-1, strips, -1)).reshape(rows, -1).topk(k)
    tokens = found.indices // k * page.shape[2] + columns.gather(1, found.indices % k)
    total = heads.float().logsumexp(-1, keepdim=True)
    return tokens, torch.exp(found.values.float() - total)
