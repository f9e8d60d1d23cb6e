"""A GPT-2 model that writes a given text whatever it reads: its next token is a function of the position alone."""

from collections.abc import Sequence
from typing import Any

import torch

from tests.tiny import tiny_model


def scripted_model(script: Sequence[int], prompt_tokens: int, vocab_size: int, positions: int = 1023) -> Any:
    """Return a model that emits these tokens after a prompt of this length, and then the last one again and again.

    Args:
        script: The tokens.
        prompt_tokens: Length of the prompt.
        vocab_size: Number of the model's tokens.
        positions: Maximum number of tokens, one less than a power of two: each has a row of a Hadamard matrix.
    """
    sizes = {"n_embd": positions + 1, "n_head": 4, "n_layer": 1, "n_inner": 8, "n_positions": positions}
    model: Any = tiny_model("gpt2", vocab_size=vocab_size, max_position_embeddings=positions, **sizes)
    signs = torch.ones(1, 1)
    while len(signs) <= positions:
        signs = torch.cat([torch.cat([signs, signs], dim=1), torch.cat([signs, -signs], dim=1)])
    with torch.no_grad():
        for weights in model.transformer.h.parameters():
            weights.zero_()
        model.transformer.wte.weight.zero_()
        model.transformer.wpe.weight.copy_(signs[1:])
        model.lm_head.weight.zero_()
        for place in range(positions - prompt_tokens):
            model.lm_head.weight[script[min(place, len(script) - 1)]] += signs[prompt_tokens + place]
    return model
