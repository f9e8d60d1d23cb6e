"""What a cache can take back: accepted rows stay, the others are forgotten. Knows layers of caches, never a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import DynamicSlidingWindowLayer, StaticLayer

from antiphon.accel.engines.protocol import Level
from antiphon.accel.engines.torch.growing import GrowingLayer, shared_buffers
from antiphon.accel.engines.torch.traits import STATE_LAYERS, TREE_LAYERS

FP8 = "Fp8QuantizedLayer"  # by name: releases of transformers before it had no such class to import


def rewindable(cache: Cache, level: Level) -> tuple[Level, str]:
    """What is left of a model's level with this very cache, and why: the caller may have brought another kind.

    Rows can be taken back out of layers that only append. Ring buffers have overwritten what stood there before, the
    group-wise quantised layers quantise anew at moments that depend on how many tokens come at once, and offloaded
    layers are copied away while the next one runs: such a cache is decoded plainly. So is a fixed buffer unless the
    model takes our masks: GPT-Neo, which makes its own, counts positions from the end of whatever it is handed.
    """
    if level == "plain":
        return level, ""
    if getattr(cache, "offloading", False):
        return "plain", "its layers are moved to the CPU and back (offloading)"
    appending = TREE_LAYERS | {GrowingLayer.__name__}
    states = STATE_LAYERS if level == "replay" or cache.is_croppable else frozenset[str]()
    also = {"tree": {FP8, StaticLayer.__name__}, "linear": {FP8} | states, "replay": states}[level]
    others = sorted({type(layer).__name__ for layer in cache.layers} - appending - also)
    if others:
        return "plain", f"it has layers that cannot be rewound ({', '.join(others)})"
    if level == "replay" and cache.is_croppable:
        return "linear", "it holds convolutional state without a recurrent one"
    return level, ""


def capacity(cache: Cache) -> int | None:
    """How many tokens fit into the cache: the size of its fixed buffers, or None where every layer grows."""
    return min((layer.get_max_length() for layer in cache.layers if type(layer) is StaticLayer), default=None)


def commit(cache: Cache, kept: Sequence[int], *, held: int, fed: int) -> None:
    """Of the ``fed`` rows behind the first ``held`` ones, keep ``kept`` (ascending) and forget the others.

    Kept rows are moved up within the layers' own memory and what follows is cropped: O(kept), never O(held).
    """
    stray = next((place for place, row in enumerate(kept) if row != place), len(kept))
    moved = torch.tensor(kept[stray:]) if stray < len(kept) else None
    if together := shared_buffers(cache.layers):
        for buffer in together:
            if moved is not None:
                states = buffer.everywhere()
                _move_up(states.narrow(-2, buffer.lengths[0] - fed, fed), stray, moved.to(states.device))
            buffer.crop(fed - len(kept))
        return
    for layer in cache.layers:
        if not getattr(layer, "is_initialized", True):
            continue  # it has never been fed: it reads the keys and values of another layer
        if moved is not None:
            for states in _states(layer):
                moved = moved.to(states.device)  # a copy for each device, not layer
                start = held if type(layer) is StaticLayer else states.shape[-2] - fed
                _move_up(states.narrow(-2, start, fed), stray, moved)
        _forget(layer, fed - len(kept))


def recorders(cache: Cache, level: Level) -> list[Any]:
    """The layers that keep what a draft may have to take back; state that is replayed has its snapshot instead."""
    return [
        layer
        for layer in cache.layers
        if hasattr(layer, "activate_past_recording") and (level != "replay" or _is_sliding(layer))
    ]


def end_recording(layers: Sequence[Any]) -> None:
    """End the recording: layers forget what has left their window, and append again as in plain decoding.

    Between two steps a cache is as plain decoding would have left it, and may be handed to anybody.
    """
    for layer in layers:
        if getattr(layer, "record_past", False) and layer.is_croppable:
            if getattr(layer, "is_initialized", True):
                layer.crop(0)
            layer.record_past = False


def _move_up(rows: Tensor, stray: int, moved: Tensor) -> None:
    """Copy the ``moved`` ones of some rows, (..., rows, size), to where the ``stray``-th stands and behind it."""
    rows.narrow(-2, stray, len(moved)).copy_(rows.index_select(-2, moved))


def _is_sliding(layer: Any) -> bool:
    return type(layer) is DynamicSlidingWindowLayer


def _states(layer: Any) -> list[Tensor]:
    """The keys and the values of a layer, as tensors that an index can select from."""
    if type(layer).__name__ == FP8:
        return [quantised.view(torch.uint8) for quantised, _ in (layer._quantized_keys, layer._quantized_values)]
    keys: Tensor | None = getattr(layer, "keys", None)
    return [] if keys is None else [keys, layer.values]


def _forget(layer: Any, count: int) -> None:
    """Drop the last ``count`` rows; of a sliding layer also those that have left its window."""
    if type(layer) is StaticLayer:
        layer.cumulative_length.sub_(count)  # in place: compiled graphs hold on to its address
    elif type(layer).__name__ != FP8:
        layer.crop(-count)
    elif count:  # no public name reaches its states, and its inherited crop looks for unquantised ones
        (keys, key_scale), (values, value_scale) = layer._quantized_keys, layer._quantized_values
        layer._quantized_keys = (keys[..., :-count, :], key_scale)
        layer._quantized_values = (values[..., :-count, :], value_scale)
        layer.cumulative_length -= count
