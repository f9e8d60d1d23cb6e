"""Chooses the model's next token: the argmax, or one draw from the processed distribution. Independent of drafts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList

from antiphon.accel.decoding.output import TokenHistory
from antiphon.accel.drafting.draft import Logits

NO_TOKEN = (
    "probability tensor contains either `inf`, `nan` or element < 0: every token is forbidden by the request's logits "
    "processors, or the model's logits are not numbers."
)
"""Error of a request that allows no token; it begins like torch's error on a CPU."""


class Sampler:
    """Chooses tokens as `generate` of transformers does, only at the rows that verification visits.

    Logits processors get all tokens up to the row, shape (1, length), and float32 logits, shape (1, vocab), in the
    order of plain decoding, so stateful ones stay correct. There is one draw per emitted token: a seed gives the same
    text with and without drafts.

    Args:
        processors: The logits processors that `generate` prepared.
        sample: Draw tokens; False: take the most likely one.
        generator: Source of random numbers; None: torch's global one.
        keep_scores: Collect the processed scores of every emitted token in ``scores``, each of shape (1, vocab).
        keep_logits: Collect the raw logits of every emitted token in ``logits``, each of shape (1, vocab).
    """

    def __init__(
        self,
        history: TokenHistory,
        processors: LogitsProcessorList,
        *,
        sample: bool = False,
        generator: torch.Generator | None = None,
        keep_scores: bool = False,
        keep_logits: bool = False,
    ) -> None:
        self.history = history
        self.processors: Any = processors  # the type stub declares a LongTensor
        self.sample = sample
        self.generator = generator
        self.scores: list[Tensor] | None = [] if keep_scores else None
        self.logits: list[Tensor] | None = [] if keep_logits else None

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is chosen and no other logits are read."""
        return not self.sample and not self.processors and self.scores is None and self.logits is None

    def bind(self, logits: Logits) -> Callable[[int], int]:
        """Return a function from a row of one forward pass to the model's next token after that row."""
        if self.is_greedy:
            return logits.argmax
        tensor = logits.tensor()
        return lambda row: self._choose(tensor[row + 1 : row + 2])

    @torch.no_grad()
    def _choose(self, row: Tensor) -> int:
        ids = self.history.ids
        raw = row.to(copy=True, dtype=torch.float32, device=ids.device)
        scores = self.processors(ids, raw)
        if self.scores is not None:
            self.scores.append(scores)
        if self.logits is not None:
            self.logits.append(raw)
        if not self.sample:
            return int(scores.argmax(dim=-1))
        probabilities = scores.softmax(dim=-1)
        if probabilities[0, 0].isnan():
            if scores.isposinf().any():  # an extreme penalty made a score infinite
                return int(scores.argmax(dim=-1))
            if scores.device.type != "cpu":  # a GPU's assertion would end all work of this process on it
                raise RuntimeError(NO_TOKEN)
        return int(torch.multinomial(probabilities, num_samples=1, generator=self.generator))
