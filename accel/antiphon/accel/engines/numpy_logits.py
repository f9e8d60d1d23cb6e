"""Logits of one sequence's rows as a numpy array, for engines without torch."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from antiphon.accel.drafting.draft import places_of

if TYPE_CHECKING:
    from torch import Tensor

STRIPS = 64
"""Number of strips into which a row of logits is cut, if it divides the vocabulary; see `top_k`."""


class NumpyLogits:
    """Implements `antiphon.accel.drafting.draft.Logits` over a numpy array.

    Args:
        array: Logits of the root and of each row, shape (1 + rows, vocab). The type is float32,
            float16, or uint16 with the bits of bfloat16, because numpy has no bfloat16.

    Raises:
        TypeError: The array has another type.
    """

    def __init__(self, array: NDArray[Any]) -> None:
        if array.dtype not in (np.float32, np.float16, np.uint16):
            raise TypeError(
                f"The logits are of type {array.dtype}; give float32, float16, or bfloat16 as bits in uint16."
            )
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    @property
    def vocab_size(self) -> int:
        """See `Logits.vocab_size`."""
        return int(self._array.shape[1])

    def argmax(self, row: int) -> int:
        """See `Logits.argmax`."""
        return int(self._float32([row])[0].argmax())

    def top_k(self, rows: Sequence[int], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """See `Logits.top_k`."""
        return top_k(self._float32(rows), k)

    def head(self, rows: int) -> NumpyLogits:
        """See `Logits.head`."""
        return NumpyLogits(self._array[: 1 + rows])

    def tensor(self) -> Tensor:
        """See `Logits.tensor`. Torch is imported here, and the tensor shares the memory of the array."""
        import torch

        if self._array.dtype == np.uint16:
            return torch.from_numpy(self._array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(self._array)

    def _float32(self, rows: Sequence[int]) -> NDArray[np.float32]:
        """Return rows in float32. The result may be a view of the array: do not write to it."""
        return as_float32(self._array[places_of(rows)])


def as_float32(values: NDArray[Any]) -> NDArray[np.float32]:
    """Convert float16, or bits of bfloat16 in uint16, to float32. Float32 values are not copied."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32, copy=False)


def round_to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return values rounded to the nearest bfloat16, ties to even, in float32."""
    bits = values.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return np.where(np.isnan(values), values, rounded)


def top_k(
    logits: NDArray[np.float32], k: int, scales: NDArray[np.float64] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the ``k`` most likely tokens of each row and their approximate probabilities.

    The full vocabulary is never sorted. Each row is reshaped to (strips, vocab / strips). The k
    columns with the largest maxima contain the k largest logits, so only these strips * k logits
    are compared. Probabilities are normalized over the column maxima only. They are therefore
    slightly too high, as in `antiphon.accel.engines.torch.argmax.top_k`.

    Args:
        logits: Shape (rows, vocab).
        scales: Positive factor for each row's logits, shape (rows,); None for 1.

    Returns:
        Token ids and probabilities, each of shape (rows, k), the most likely token first.
    """
    rows, vocab = logits.shape
    strips = gcd(vocab, STRIPS) if vocab >= STRIPS * k else 1
    page = logits.reshape(rows, strips, vocab // strips)
    # 1. Find the k columns with the largest maxima, and all logits in them.
    maxima = page.max(1)  # (rows, columns)
    columns = np.argpartition(maxima, -k, axis=1)[:, -k:]  # (rows, k)
    candidates = np.take_along_axis(page, columns[:, None, :], 2).reshape(rows, strips * k)
    # 2. Find the k largest of these logits, in descending order; among equal logits the lowest token id.
    chosen = np.sort(np.argpartition(candidates, -k, axis=1)[:, -k:], axis=1)
    ranks = np.argsort(-np.take_along_axis(candidates, chosen, 1), axis=1, kind="stable")
    order = np.take_along_axis(chosen, ranks, 1)
    # 3. Compute their token ids and probabilities.
    tokens = order // k * page.shape[2] + np.take_along_axis(columns, order % k, 1)
    values = np.take_along_axis(candidates, order, 1)
    if scales is not None:
        factors = scales[:, None].astype(np.float32)
        values, maxima = values * factors, maxima * factors
    highest = values[:, :1]
    probabilities = np.exp(values - highest) / np.exp(maxima - highest).sum(1, keepdims=True)
    return tokens.astype(np.int64), probabilities.astype(np.float32)
