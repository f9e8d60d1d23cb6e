"""The logits of one text's rows, as an array of numpy: for engines without torch. Knows neither drafts nor models."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

STRIPS = 64
"""Into so many strips a row is cut, where the vocabulary can be divided by that, to find its greatest numbers."""


class NumpyLogits:
    """`antiphon.accel.drafting.draft.Logits` over an array of shape (1 + rows, vocab), the root's first.

    Numbers are float32, float16, or bfloat16 as its bits in uint16, which numpy has no type for.

    Raises:
        TypeError: the numbers are of another type.
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
        """The size of a row."""
        return int(self._array.shape[1])

    def argmax(self, row: int) -> int:
        """The likeliest token after this row (-1: the root), of equal ones the first."""
        return int(self._numbers([row])[0].argmax())

    def top_k(self, rows: Sequence[int], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The ``k`` likeliest tokens after each of these rows, best first, and about how likely they are; (rows, k)."""
        return _likeliest(self._numbers(rows), k)

    def head(self, rows: int) -> NumpyLogits:
        """The same without the rows behind the first ``rows`` of the draft."""
        return NumpyLogits(self._array[: 1 + rows])

    def tensor(self) -> Tensor:
        """A tensor of torch over the same numbers; it is imported here, for callers who have it."""
        import torch

        if self._array.dtype == np.uint16:
            return torch.from_numpy(self._array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(self._array)

    def _numbers(self, rows: Sequence[int]) -> NDArray[np.float32]:
        """The rows in float32, as a view where they can be: nobody writes to them."""
        if isinstance(rows, range) and rows.step == 1:
            lines = self._array[rows.start + 1 : rows.stop + 1]
        else:
            lines = self._array[[row + 1 for row in rows]]
        if lines.dtype == np.uint16:
            return (lines.astype(np.uint32) << 16).view(np.float32)
        return lines.astype(np.float32, copy=False)


def _likeliest(numbers: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The ``k`` likeliest tokens of each row, the likeliest first, and about their probabilities; (rows, k) each.

    A row is laid out as strips below each other. The k greatest numbers stand in the k columns whose maxima are the
    greatest, so no more than those are sorted; and probabilities are relative to the columns' maxima alone, therefore a
    little too large, as those of `antiphon.accel.engines.torch.argmax.top_k` are.
    """
    rows, vocabulary = numbers.shape
    strips = gcd(vocabulary, STRIPS) if vocabulary >= STRIPS * k else 1
    page = numbers.reshape(rows, strips, vocabulary // strips)
    heads = page.max(1)
    columns = np.argpartition(heads, -k, axis=1)[:, -k:]
    few = np.take_along_axis(page, columns[:, None, :], 2).reshape(rows, strips * k)
    chosen = np.sort(np.argpartition(few, -k, axis=1)[:, -k:], axis=1)
    ranks = np.argsort(-np.take_along_axis(few, chosen, 1), axis=1, kind="stable")
    order = np.take_along_axis(chosen, ranks, 1)
    tokens = order // k * page.shape[2] + np.take_along_axis(columns, order % k, 1)
    values = np.take_along_axis(few, order, 1)
    highest = values[:, :1]
    chances = np.exp(values - highest) / np.exp(heads - highest).sum(1, keepdims=True)
    return tokens.astype(np.int64), chances.astype(np.float32)
