"""What a model said, as numpy holds it. Knows neither drafts nor how a token is chosen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from antiphon.accel.engines.torch.best import best


class NumpyLogits:
    """Logits of shape (1 + rows, vocab), float32, the root's first; they are nobody else's memory."""

    def __init__(self, numbers: NDArray[np.float32]) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def best(self, row: int) -> int:
        """The likeliest token after this row (``ROOT``: after the last confirmed token), of equal ones the first."""
        return int(self.numbers[row + 1].argmax())

    def top(self, rows: Sequence[int], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The ``k`` likeliest tokens after each of these rows, best first, and about their probabilities."""
        wanted = torch.from_numpy(self.numbers[[row + 1 for row in rows]])
        tokens, shares = best(wanted, k)
        return tokens.numpy(), shares.numpy()

    def tensor(self) -> torch.Tensor:
        """All of them as a tensor of shape (1 + rows, vocab), which shares this memory."""
        return torch.from_numpy(self.numbers)
