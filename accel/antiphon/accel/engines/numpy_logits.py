"""The logits of one text's rows, as an array of numpy: for engines without torch. Knows neither drafts nor models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor


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
    def vocabulary(self) -> int:
        """The size of a row."""
        return int(self._array.shape[1])

    def best(self, row: int) -> int:
        """The likeliest token after this row (-1: the root), of equal ones the first."""
        return int(self._numbers([row])[0].argmax())

    def top(self, rows: Sequence[int], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The ``k`` likeliest tokens after each of these rows, best first, and their probabilities; (rows, k) each."""
        numbers = self._numbers(rows)
        found = np.argpartition(-numbers, k - 1, axis=1)[:, :k]
        values = np.take_along_axis(numbers, found, 1)
        order = np.argsort(-values, axis=1, kind="stable")
        tokens, values = np.take_along_axis(found, order, 1), np.take_along_axis(values, order, 1)
        highest = values[:, :1]
        chances = np.exp(values - highest) / np.exp(numbers - highest).sum(1, keepdims=True)
        return tokens.astype(np.int64), chances.astype(np.float32)

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
        """The rows in float32."""
        lines = self._array[[row + 1 for row in rows]]
        if lines.dtype == np.uint16:
            return (lines.astype(np.uint32) << 16).view(np.float32)
        return lines.astype(np.float32)
