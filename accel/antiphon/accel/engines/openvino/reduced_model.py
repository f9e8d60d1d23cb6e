"""Make a small random model with the architecture of a large one, to test conversion and attention exactly."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from antiphon.accel.quiet_loading import quiet_loading

MIN_LAYERS = 2

LARGEST = {"intermediate_size": 1024, "vocab_size": 1024}
"""Largest values of dimensions that attention does not depend on."""


def reduced_model(model: PreTrainedModel, layer_kinds: Sequence[str]) -> PreTrainedModel:
    """Return a random model of the same class with few layers, but with every kind of layer.

    The weights only depend on the configuration. PyTorch's global random state is not changed.

    Args:
        model: The large model; only its configuration is read.

    Raises:
        AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError: The class does not support such a
            reduced configuration.
    """
    config = copy.deepcopy(model.config)
    text = config.get_text_config(decoder=True)
    count = max([MIN_LAYERS, *(1 + layer_kinds.index(kind) for kind in set(layer_kinds))])
    text.num_hidden_layers = min(count, text.num_hidden_layers)
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[: text.num_hidden_layers]
    for name, largest in LARGEST.items():
        if isinstance(size := getattr(text, name, None), int):
            setattr(text, name, min(size, largest))
    for each in (config, text):  # special tokens may lie outside of the smaller vocabulary
        each.pad_token_id = each.bos_token_id = each.eos_token_id = None
    implementation = model.config._attn_implementation
    with quiet_loading(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # `torch.manual_seed` would seed GPUs as well
        small: PreTrainedModel = type(model)._from_config(config, dtype=model.dtype, attn_implementation=implementation)
    small.eval()
    return small
