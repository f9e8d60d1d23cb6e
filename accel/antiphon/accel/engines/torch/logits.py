"""The logits of one text's rows, as a tensor of torch. Knows neither drafts nor how a token is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from antiphon.accel.engines.torch.best import argmax_of, best


class TorchLogits:
    """`antiphon.accel.drafting.draft.Logits` over a tensor of shape (1 + rows, vocab), the root's first.

    ``best`` is its argmax, of shape (1 + rows,), where the forward has already taken it. Only what is asked for leaves
    the tensor's device: the best tokens of all rows in one copy, and of other rows ``k`` tokens and probabilities.
    """

    def __init__(self, tensor: Tensor, best: Tensor | None = None) -> None:
        self._tensor = tensor
        self._argmax = best
        self._first: Callable[[int], int] | None = None

    def __len__(self) -> int:
        return len(self._tensor)

    @property
    def vocabulary(self) -> int:
        """The size of a row."""
        return self._tensor.shape[1]

    def best(self, row: int) -> int:
        """The likeliest token after this row, of equal ones the first; on a CPU only the rows asked for are read."""
        if self._first is None:
            self._first = self._finder()
        return self._first(row + 1)

    def top(self, rows: Sequence[int], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The ``k`` likeliest tokens and about their probabilities, see `antiphon.accel.engines.torch.best.best`."""
        if not rows:
            return np.empty((0, k), np.int64), np.empty((0, k), np.float32)
        first, count = rows[0] + 1, len(rows)
        is_slice = rows == range(first - 1, first - 1 + count)  # which is no copy
        chosen = self._tensor[first : first + count] if is_slice else self._tensor[[row + 1 for row in rows]]
        tokens, chances = best(chosen, k)
        return tokens.cpu().numpy(), chances.cpu().numpy()

    def head(self, rows: int) -> TorchLogits:
        """The same without the rows behind the first ``rows`` of the draft."""
        return TorchLogits(self._tensor[: 1 + rows], None if self._argmax is None else self._argmax[: 1 + rows])

    def tensor(self) -> Tensor:
        """The tensor itself."""
        return self._tensor

    def _finder(self) -> Callable[[int], int]:
        """How to find the best token after a place in the tensor."""
        if self._argmax is None and self._tensor.device.type == "cpu":
            return argmax_of(self._tensor)
        tokens: list[int] = (self._tensor.argmax(-1) if self._argmax is None else self._argmax).tolist()
        return tokens.__getitem__
