"""Logits processor for penalties and logit bias. It does not depend on the model."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList


def penalties(
    presence: float, frequency: float, bias: Mapping[int, float] | None, prompt_tokens: int, vocab_size: int
) -> LogitsProcessorList:
    """Return the processor for penalties and logit bias; an empty list if all are zero.

    Args:
        presence: Subtracted from the score of every token that has been emitted.
        frequency: Subtracted from a token's score once for each time that it was emitted.
        prompt_tokens: Length of the prompt; its tokens are not counted.

    Raises:
        ValueError: The bias names a token that the model does not have.
    """
    unknown = next((token for token in bias or {} if not 0 <= token < vocab_size), None)
    if unknown is not None:
        raise ValueError(f"logit_bias names token {unknown}; this model's tokens are 0 to {vocab_size - 1}.")
    is_needed = presence or frequency or bias
    return LogitsProcessorList([_Penalties(presence, frequency, bias or {}, prompt_tokens)] if is_needed else [])


class _Penalties(LogitsProcessor):
    """Computes score[t] + bias[t] - frequency * count[t] - presence * (count[t] > 0), as defined by OpenAI's API."""

    def __init__(self, presence: float, frequency: float, bias: Mapping[int, float], prompt_tokens: int) -> None:
        self._presence = presence
        self._frequency = frequency
        self._tokens = torch.tensor(list(bias), dtype=torch.long)
        self._bias = torch.tensor(list(bias.values()), dtype=torch.float32)
        self._prompt_tokens = prompt_tokens

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the changed scores, shape (1, vocab), of the token after ``input_ids``."""
        counts = torch.bincount(input_ids[0, self._prompt_tokens :], minlength=scores.shape[-1])
        changed = scores - self._frequency * counts - self._presence * (counts > 0)
        changed[0, self._tokens.to(scores.device)] += self._bias.to(scores.device)
        return changed
