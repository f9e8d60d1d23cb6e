"""The confirmed tokens of a request: a list for drafters, a tensor for processors and criteria. Only ever grows."""

from __future__ import annotations

import torch
from torch import Tensor


class Transcript:
    """Prompt and everything emitted so far.

    ``tokens`` is the list that drafters see as their context. ``ids`` is the same as a tensor of shape (1, length) on
    the prompt's device, made when somebody asks: greedy decoding never does.
    """

    def __init__(self, prompt: Tensor) -> None:
        self.tokens: list[int] = prompt[0].tolist()
        self._buffer = prompt
        self._filled = len(self.tokens)

    def append(self, token: int) -> None:
        """Confirm one more token."""
        self.tokens.append(token)

    @property
    def ids(self) -> Tensor:
        """All tokens, shape (1, length)."""
        length = len(self.tokens)
        if length > self._buffer.shape[1]:
            room = self._buffer.new_empty((1, max(length, 256)))
            self._buffer = torch.cat([self._buffer[:, : self._filled], room], dim=1)
        if length > self._filled:
            fresh = self._buffer.new_tensor(self.tokens[self._filled :])
            self._buffer[0, self._filled : length] = fresh
            self._filled = length
        return self._buffer[:, :length]
