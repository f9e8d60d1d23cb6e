"""Kinds of KV caches: which layers can be rolled back after verification, and how.

To add a kind of cache, add the class name of its layers to `TREE_LAYERS` or `STATE_LAYERS`, or to
the exceptions in `supported_level`. Then remove its rejected rows in `keep_rows`, and add an entry
to the table in ``test_caches.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import DynamicSlidingWindowLayer, StaticLayer

from antiphon.accel.engines.protocol import Level
from antiphon.accel.engines.torch.growing_cache import GrowingLayer

# Layers are identified by class name, because not every release of transformers has all of these classes.
DUMMY = "DummyLayer"
TREE_LAYERS = frozenset({"DynamicLayer", "DynamicSlidingWindowLayer", DUMMY})
"""Layers that only append keys and values; any rows of a draft tree can be removed from them."""

STATE_ONLY = "LinearAttentionLayer"
STATE_LAYERS = frozenset({STATE_ONLY, "LinearAttentionAndFullAttentionLayer"})
"""Layers with recurrent or convolutional state, which `DraftStates` or a snapshot rolls back."""

FP8 = "Fp8QuantizedLayer"
"""A layer that quantizes each token separately, so the last rows can be removed."""


def supported_level(cache: Cache, level: Level) -> tuple[Level, str]:
    """Return the verification level with this cache, and the reason if it is below the model's.

    Rows can only be removed from layers that append rows. With other layers, decoding is plain.
    Ring buffers have overwritten older tokens. Offloaded layers are copied to the CPU while the
    next layer runs. Group-wise quantized layers quantize again at times that depend on the number
    of tokens per forward pass. A fixed buffer (`StaticLayer`) is supported only for models of level
    "tree", because they use the given masks. GPT-Neo is not such a model: it makes its own masks,
    and counts positions from the end of the keys.

    Args:
        cache: The caller's cache, after its prefill.
    """
    if level == "plain":
        return level, ""
    if getattr(cache, "offloading", False):
        return "plain", "its layers are moved to the CPU and back (offloading)"
    appending = TREE_LAYERS | {GrowingLayer.__name__}
    also = {"tree": {FP8, StaticLayer.__name__}, "linear": {FP8}, "replay": set[str]()}[level] | STATE_LAYERS
    others = sorted({type(layer).__name__ for layer in cache.layers} - appending - also)
    if others:
        return "plain", f"it has layers that cannot be rolled back ({', '.join(others)})"
    return level, ""


def only_appends(cache: Cache) -> bool:
    """Return whether all layers of the cache only append and are never moved to another device."""
    kinds = {type(layer).__name__ for layer in cache.layers}
    return kinds <= TREE_LAYERS | {GrowingLayer.__name__} and not getattr(cache, "offloading", False)


def cached_length(cache: Cache) -> int:
    """Return the number of cached tokens; 0 for a purely recurrent cache, which has no count."""
    return int(cache.get_seq_length()) if any(hasattr(layer, "keys") for layer in cache.layers) else 0


def capacity(cache: Cache) -> int | None:
    """Return how many tokens fit into the cache's fixed buffers; None if every layer grows."""
    return min((layer.get_max_length() for layer in cache.layers if type(layer) is StaticLayer), default=None)


def keep_rows(cache: Cache, kept: Sequence[int], *, length: int, fed: int) -> None:
    """Keep the accepted rows of the last forward pass and remove its other rows, in O(kept).

    Kept rows are moved within the layers' own memory, and the slots after them are cropped.

    Args:
        cache: A cache that supports level "tree" or "linear".
        kept: Rows to keep, ascending; row 0 is the first row of the forward pass.
        length: Number of cached tokens before the forward pass.
    """
    # Rows before `first_moved` already lie in their final slots.
    first_moved = next((slot for slot, row in enumerate(kept) if row != slot), len(kept))
    moved = torch.tensor(kept[first_moved:]) if first_moved < len(kept) else None
    for layer in cache.layers:
        if not getattr(layer, "is_initialized", True):
            continue  # the layer is empty, because it uses the keys and values of another layer
        if moved is not None:
            for states in _states(layer):
                moved = moved.to(states.device)  # one copy for each device, not for each layer
                start = length if type(layer) is StaticLayer else states.shape[-2] - fed
                rows = states.narrow(-2, start, fed)
                rows.narrow(-2, first_moved, len(moved)).copy_(rows.index_select(-2, moved))
        _remove_last(layer, fed - len(kept))


def recording_layers(cache: Cache) -> list[Any]:
    """Return the layers that can record overwritten tokens. With this record, a draft's rows can be removed again."""
    return [layer for layer in cache.layers if type(layer) is DynamicSlidingWindowLayer]


def end_recording(layers: Sequence[Any]) -> None:
    """Stop the recording of overwritten tokens; each layer drops the tokens outside of its window.

    So between two steps the cache is the same as in plain decoding, and any caller may use it.
    """
    for layer in layers:
        if getattr(layer, "record_past", False) and layer.is_croppable:
            if getattr(layer, "is_initialized", True):
                layer.crop(0)
            layer.record_past = False


def crop_attention(layer: Any, count: int) -> None:
    """Remove a layer's last ``count`` keys and values; `crop` would also change the layer's state."""
    if count and getattr(layer, "keys", None) is not None:
        layer.keys, layer.values = layer.keys[..., :-count, :], layer.values[..., :-count, :]


def _states(layer: Any) -> list[Tensor]:
    """Return the keys and the values of a layer as tensors that support `index_select`."""
    if type(layer).__name__ == FP8:
        return [quantised.view(torch.uint8) for quantised, _ in (layer._quantized_keys, layer._quantized_values)]
    keys: Tensor | None = getattr(layer, "keys", None)
    return [] if keys is None else [keys, layer.values]


def _remove_last(layer: Any, count: int) -> None:
    """Remove the last ``count`` rows of a layer; in a sliding layer also the tokens outside of its window."""
    if type(layer) is StaticLayer:
        layer.cumulative_length.sub_(count)  # in place, because compiled graphs refer to the address
    elif type(layer).__name__ in STATE_LAYERS:
        crop_attention(layer, count)
    elif type(layer).__name__ != FP8:
        layer.crop(-count)
    elif count:  # the inherited `crop` only finds unquantised states
        (keys, key_scale), (values, value_scale) = layer._quantized_keys, layer._quantized_values
        layer._quantized_keys = (keys[..., :-count, :], key_scale)
        layer._quantized_values = (values[..., :-count, :], value_scale)
        layer.cumulative_length -= count
