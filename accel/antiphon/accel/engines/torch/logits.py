"""Logits of one sequence's rows, as a torch tensor. The module knows nothing about drafting."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from antiphon.accel.drafting.draft import places_of
from antiphon.accel.engines.torch.argmax import row_argmax, top_k


class TorchLogits:
    """Implements `antiphon.accel.drafting.draft.Logits` over a tensor; only requested results leave its device.

    Args:
        tensor: Shape (1 + rows, vocab), the root's row first.
        argmax: Argmax of the logits, shape (1 + rows,), if the forward pass has computed it.
    """

    def __init__(self, tensor: Tensor, argmax: Tensor | None = None) -> None:
        self._tensor = tensor
        self._argmax = argmax
        self._row_argmax: Callable[[int], int] | None = None

    def __len__(self) -> int:
        return len(self._tensor)

    @property
    def vocab_size(self) -> int:
        """Number of logits per row."""
        return self._tensor.shape[1]

    def argmax(self, row: int) -> int:
        """See `Logits.argmax`."""
        if self._row_argmax is None:
            self._row_argmax = self._make_row_argmax()
        return self._row_argmax(row + 1)

    def top_k(self, rows: Sequence[int], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the ``k`` most likely tokens after each row and their probabilities; see `Logits.top_k`."""
        tokens, probabilities = top_k(self._tensor[places_of(rows)], k)
        return tokens.cpu().numpy(), probabilities.cpu().numpy()

    def head(self, rows: int) -> TorchLogits:
        """Return the logits after the root and the first ``rows`` rows of the draft."""
        return TorchLogits(self._tensor[: 1 + rows], None if self._argmax is None else self._argmax[: 1 + rows])

    def tensor(self) -> Tensor:
        """Return all logits, of shape (1 + rows, vocab)."""
        return self._tensor

    def _make_row_argmax(self) -> Callable[[int], int]:
        """Return the function that finds the argmax of a row. A GPU's results for all rows are copied at once."""
        if self._argmax is None and self._tensor.device.type == "cpu":
            return row_argmax(self._tensor)
        tokens: list[int] = (self._tensor.argmax(-1) if self._argmax is None else self._argmax).tolist()
        return tokens.__getitem__
