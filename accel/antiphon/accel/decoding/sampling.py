"""The model's own next token: an argmax, or one draw from the processed distribution. Knows nothing of drafts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList

from antiphon.accel.decoding.transcript import Transcript
from antiphon.accel.drafting.draft import Logits


class Chooser:
    """Chooses as `generate` does, at the rows that are visited and only there.

    Processors get the confirmed tokens with the path's own (shape (1, length)) and float32 logits (1, vocab), in the
    same order as in plain decoding, so stateful ones stay right. One draw per emitted token: the same seed gives the
    same text with and without drafts.

    ``scores`` and ``logits`` collect what each emitted token was chosen from, each of shape (1, vocab), where asked;
    ``log_probability`` sums up what the model, before any processor, gave the tokens that were chosen, where it was
    asked for by `weigh`.
    """

    def __init__(
        self,
        transcript: Transcript,
        processors: LogitsProcessorList,
        *,
        sample: bool = False,
        generator: torch.Generator | None = None,
        keep_scores: bool = False,
        keep_logits: bool = False,
    ) -> None:
        self.transcript = transcript
        self.processors: Any = processors  # its stub wants a LongTensor, which no tensor is
        self.sample = sample
        self.generator = generator
        self.scores: list[Tensor] | None = [] if keep_scores else None
        self.logits: list[Tensor] | None = [] if keep_logits else None
        self.log_probability: float | None = None

    def weigh(self) -> None:
        """Count from here on how likely the model finds the tokens that are chosen, in nats."""
        self.log_probability = 0.0

    def over(self, logits: Logits) -> Callable[[int], int]:
        """How to choose after each row of one forward."""
        choose = self._choice(logits)
        if self.log_probability is None:
            return choose
        tensor = logits.tensor()

        def weighed(row: int) -> int:
            token = choose(row)
            told = torch.log_softmax(tensor[row + 1].float(), dim=-1)[token].item()
            self.log_probability = (self.log_probability or 0.0) + told
            return token

        return weighed

    def _choice(self, logits: Logits) -> Callable[[int], int]:
        if self.sample or self.processors or self.scores is not None or self.logits is not None:
            tensor = logits.tensor()
            return lambda row: self._choose(tensor[row + 1 : row + 2])
        return logits.best

    @torch.no_grad()
    def _choose(self, row: Tensor) -> int:
        ids = self.transcript.ids
        raw = row.to(copy=True, dtype=torch.float32, device=ids.device)
        scores = self.processors(ids, raw)
        if self.scores is not None:
            self.scores.append(scores)
        if self.logits is not None:
            self.logits.append(raw)
        if not self.sample:
            return int(scores.argmax(dim=-1))
        return int(torch.multinomial(scores.softmax(dim=-1), num_samples=1, generator=self.generator))
