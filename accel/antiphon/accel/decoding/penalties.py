"""Scores that are changed by what the text has, and by what is wanted of tokens or of its beginning. Knows no model."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from antiphon.accel.drafting.draft import Tokens


def penalties(
    presence: float, frequency: float, bias: Mapping[int, float] | None, prompt_tokens: int, vocabulary: int
) -> LogitsProcessorList:
    """What takes penalties from the tokens of the text after its prompt and adds the bias; nothing where all are 0.

    Raises:
        ValueError: the bias names a token that the model does not have.
    """
    unknown = next((token for token in bias or {} if not 0 <= token < vocabulary), None)
    if unknown is not None:
        raise ValueError(f"logit_bias names token {unknown}; this model's tokens are 0 to {vocabulary - 1}.")
    wanted = presence or frequency or bias
    return LogitsProcessorList([_Penalties(presence, frequency, bias or {}, prompt_tokens)] if wanted else [])


class _Penalties(LogitsProcessor):
    """score[t] + bias[t] - frequency * count[t] - presence * (count[t] > 0), as OpenAI's API defines them."""

    def __init__(self, presence: float, frequency: float, bias: Mapping[int, float], prompt_tokens: int) -> None:
        self._presence = presence
        self._frequency = frequency
        self._tokens = torch.tensor(list(bias), dtype=torch.long)
        self._bias = torch.tensor(list(bias.values()), dtype=torch.float32)
        self._prompt_tokens = prompt_tokens

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores of shape (1, vocab) for the token after these ids."""
        counts = torch.bincount(input_ids[0, self._prompt_tokens :], minlength=scores.shape[-1])
        changed = scores - self._frequency * counts - self._presence * (counts > 0)
        changed[0, self._tokens.to(scores.device)] += self._bias.to(scores.device)
        return changed


def beginning(tokens: Tokens, prompt_tokens: int) -> LogitsProcessorList:
    """What has the text after its prompt begin with these tokens; nothing where there are none."""
    return LogitsProcessorList([_Beginning(tokens, prompt_tokens)] if tokens else [])


class _Beginning(LogitsProcessor):
    """Rules out all tokens but one while the beginning is being said."""

    def __init__(self, tokens: Tokens, prompt_tokens: int) -> None:
        self._tokens = tokens
        self._prompt_tokens = prompt_tokens

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores of shape (1, vocab) for the token after these ids."""
        place = input_ids.shape[1] - self._prompt_tokens
        if place >= len(self._tokens):
            return scores
        left = torch.full_like(scores, -torch.inf)
        left[:, self._tokens[place]] = 0.0
        return left
