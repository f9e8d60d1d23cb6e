"""Argmax and top-k of rows of logits without sorting whole rows."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

import numpy as np
import torch
from torch import Tensor

_STRIPS = 64

_INFINITY = {torch.bfloat16: 0x7F80, torch.float16: 0x7C00}
"""The bits of infinity. The bits of half-precision numbers, read as signed integers, have the order
of these numbers from 0 on. Negative numbers have negative integers, in reverse order. Bits that are
greater than those of infinity, apart from the sign, are NaN."""

_SIGN = 0x8000


def argmax(logits: Tensor) -> Tensor:
    """Return the most likely token of each row, shape (rows,); in a tie, the lowest token id."""
    if logits.device.type != "cpu":
        return logits.argmax(-1)
    find = row_argmax(logits)
    return torch.tensor([find(row) for row in range(len(logits))], dtype=torch.long)


def row_argmax(logits: Tensor) -> Callable[[int], int]:
    """Return a function that finds the argmax of one row, for callers that need only some rows.

    The logits, shape (rows, vocab), must be on a CPU. Numpy searches the float32 values, or the
    bits of values in half precision. A row of 49,152 tokens takes 2 to 4 microseconds;
    `Tensor.argmax` takes 30 in float32 and 170 in bfloat16.
    """
    logits = logits.detach()
    if logits.dtype == torch.float32:
        numbers = logits.numpy()
        return lambda row: int(numbers[row].argmax())
    if logits.dtype not in _INFINITY:
        return lambda row: int(logits[row].argmax())
    bits, infinity = logits.view(torch.int16).numpy(), _INFINITY[logits.dtype]

    def find(row: int) -> int:
        line = bits[row]
        token = int(line.argmax())
        if line[token] < 0:
            token = int(line.argmin())
        is_number = line[token] <= infinity and line.view(np.uint16).max() <= _SIGN + infinity
        # If the maximum is zero, +0 and -0 are equal but their bits differ: torch decides.
        return token if is_number and line[token] else int(logits[row].argmax())

    return find


def top_k(logits: Tensor, k: int, scales: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the ``k`` best tokens of each row, best first, and approximate probabilities.

    A row is reshaped to (strips, columns). The ``k`` best tokens lie in the ``k`` columns with the largest maxima, so
    few tokens remain to be sorted. For 33 rows of 49,152 tokens on a CPU this takes an eighth of the time of `topk`
    and `logsumexp`. The softmax is computed over the column maxima only, so probabilities are slightly too high.

    Args:
        logits: Shape (rows, vocab).
        scales: Positive factor of each row's logits, shape (rows,); None for 1.

    Returns:
        Tokens and float32 probabilities, both of shape (rows, k).
    """
    rows, vocab_size = logits.shape
    strips = gcd(vocab_size, _STRIPS) if vocab_size >= _STRIPS * k else 1
    folded = logits.reshape(rows, strips, vocab_size // strips)
    maxima = _column_maxima(folded)
    columns = maxima.topk(k).indices
    # (rows, strips * k) candidates: all tokens of the k best columns.
    found = folded.gather(2, columns.unsqueeze(1).expand(-1, strips, -1)).reshape(rows, strips * k).topk(k)
    tokens = found.indices // k * folded.shape[2] + columns.gather(1, found.indices % k)
    values, maxima = found.values.float(), maxima.float()
    if scales is not None:
        values, maxima = values * scales[:, None], maxima * scales[:, None]
    return tokens, (values - values.narrow(1, 0, 1)).exp_().mul_(maxima.softmax(-1).amax(-1, keepdim=True))


def _column_maxima(folded: Tensor) -> Tensor:
    """Return the maximum of every column of a tensor (rows, strips, columns).

    In half precision on a CPU, the bits are compared as integers, which is six times as fast.
    """
    if folded.device.type == "cpu" and folded.dtype in _INFINITY:
        bits = folded.view(torch.int16)
        most = bits.amax(1)
        if most.numel() and int(most.amin()) < 0:
            most = torch.where(most < 0, bits.amin(1), most)
        return most.view(folded.dtype)
    return folded.amax(1)
