"""Untrained BiTA weights of a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from antiphon.accel.engines.torch.bita_weights import (
    TENSORS,
    VERSION,
    BitaWeights,
    model_name,
    tensor_shapes,
    weight_sample,
)
from antiphon.accel.files import write_file

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NOISE = 0.02
"""Standard deviation of untrained weights."""


def initial_bita_weights(model: PreTrainedModel, *, prefix: int = 16, masks: int = 3, seed: int = 0) -> BitaWeights:
    """Return untrained weights in float32: a random prefix, and mask embeddings near the mean embedding.

    Args:
        prefix: Length of the prefix, at least 0.
        masks: Number of mask tokens, at least 1.

    Raises:
        ValueError: The model cannot have BiTA weights (see `tensor_shapes`), or a number is out of range.
    """
    if prefix < 0 or masks < 1:
        raise ValueError(f"prefix is {prefix} and masks {masks}; BiTA needs at least 0 of the first and 1 mask.")
    random = torch.Generator().manual_seed(seed)
    keys, values, noise = (NOISE * torch.randn(s, generator=random) for s in tensor_shapes(model, prefix, masks))
    embeddings: Any = model.get_input_embeddings()
    mean = embeddings.weight.detach().float().mean(0).cpu()
    return BitaWeights(keys, values, mean + noise, weight_sample(model), model_name(model))


def save_bita_weights(weights: BitaWeights, path: Path) -> None:
    """Write the weights to one safetensors file, atomically."""
    from safetensors.torch import save

    tensors = dict(zip(TENSORS, (weights.keys, weights.values, weights.masks, weights.sample), strict=True))
    facts = {"version": VERSION, "model": weights.model, "notes": weights.notes}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # One metadata entry: safetensors writes several in random order.
    write_file(path, save(tensors, {"bita": json.dumps(facts)}))
