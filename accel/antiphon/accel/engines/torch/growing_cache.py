"""A KV cache that writes tokens in place into buffers with spare slots, instead of copying it for every token."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import prod
from typing import Any, cast

from torch import Tensor
from transformers import Cache, DynamicCache, PretrainedConfig
from transformers.cache_utils import DynamicLayer

MIN_FREE_SLOTS = 64
"""Minimum number of spare slots of a new buffer, in tokens; a long buffer gets an eighth of its length."""

MAX_SHARED_BYTES = 2**28
"""Maximum size in bytes of a buffer that layers share: two copies exist while it grows or a layer leaves it."""


class Buffer:
    """States of several layers, each of shape (..., tokens, size), in one tensor that grows by an eighth.

    After a forward pass the processor's caches hold no layer's states any more, so visiting each layer is slow. With
    all layers in one tensor and their lengths in one array, rows are removed or moved in all layers at once.

    Args:
        max_shared_bytes: Maximum size of the tensor if there are several layers.
    """

    def __init__(self, layers: int = 1, *, max_shared_bytes: int = MAX_SHARED_BYTES) -> None:
        self._max_shared_bytes = max_shared_bytes
        self.lengths = array("q", [0]) * layers
        self.is_complete = True  # whether all layers are still in this buffer
        self._memory: Tensor | None = None  # (layers, ..., slots, size)
        self._layers: tuple[Tensor, ...] = ()  # view of each layer's states
        self._slots = 0  # slots that may be written; 0 if the memory belongs to the caller

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_layers": ()}  # pickle would copy the views

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._set_memory(self._memory, self._slots)

    def states(self, layer: int) -> Tensor | None:
        """Return the states of one layer, as a view of the memory; None if there is none."""
        return None if self._memory is None else self._layers[layer].narrow(-2, 0, self.lengths[layer])

    def adopt(self, states: Tensor) -> None:
        """Use the caller's tensor as the states, without ever writing to it; only for a buffer of one layer."""
        self._set_memory(states[None], 0)
        self.lengths[0] = states.shape[-2]

    def clear(self, layer: int) -> None:
        """Remove the states of one layer; the memory is freed when no layer holds any."""
        self.lengths[layer] = 0
        if not any(self.lengths):
            self._set_memory(None, 0)

    def append(self, layer: int, new_states: Tensor) -> Tensor | None:
        """Append states to one layer.

        Args:
            new_states: Shape (..., tokens, size).

        Returns:
            All states of the layer, as one view; None if they do not fit into one tensor with the other layers'.
        """
        length, tokens = self.lengths[layer], new_states.shape[-2]
        target = self._layers[layer].narrow(-2, length, tokens) if length + tokens <= self._slots else None
        if target is None or not _are_alike(target, new_states):
            if not self._grow(length + tokens, new_states):
                return None
            target = self._layers[layer].narrow(-2, length, tokens)
        target.copy_(new_states)
        self.lengths[layer] = length + tokens
        return self._layers[layer].narrow(-2, 0, length + tokens)

    def all_layers(self) -> Tensor:
        """Return the states of all layers, of shape (layers, ..., tokens, size); they must be equally long."""
        return cast(Tensor, self._memory).narrow(-2, 0, self.lengths[0])

    def crop(self, tokens: int) -> None:
        """Remove the last tokens of all layers; they must be equally long."""
        self.lengths = array("q", [self.lengths[0] - tokens]) * len(self.lengths)

    def _grow(self, tokens: int, new_states: Tensor) -> bool:
        """Allocate a larger memory; return False if the layers cannot share one."""
        shape = (
            len(self.lengths),
            *new_states.shape[:-2],
            tokens + max(tokens // 8, MIN_FREE_SLOTS),
            new_states.shape[-1],
        )
        held = None if self._memory is None else self._memory.narrow(-2, 0, max(self.lengths))
        fits = held is None or not held.numel() or _are_alike(held[0, ..., :1, :], new_states[..., :1, :])
        is_small = new_states.device.type == "cpu" and prod(shape) * new_states.itemsize <= self._max_shared_bytes
        if len(self.lengths) > 1 and not (fits and is_small and self.is_complete):
            return False
        memory = new_states.new_empty(shape)
        if held is not None and held.numel():
            memory.narrow(-2, 0, held.shape[-2]).copy_(held)
        self._set_memory(memory, shape[-2])
        return True

    def _set_memory(self, memory: Tensor | None, slots: int) -> None:
        self._memory, self._slots = memory, slots
        # `.data`: the views are also written while gradients are recorded.
        self._layers = () if memory is None else tuple(each.data for each in memory)


def _are_alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.device == other.device


class GrowingLayer(DynamicLayer):
    """A full-attention layer of a cache whose keys and values are views of two growing buffers.

    Layers may share the buffers. A layer moves to separate buffers if it is assigned other states, if its states have
    another shape, or if they are too many for a shared tensor.

    Args:
        keys: Buffer of the keys; None makes one for this layer alone.
        values: Buffer of the values; None makes one for this layer alone.
    """

    def __init__(self, keys: Buffer | None = None, values: Buffer | None = None, index: int = 0) -> None:
        self._keys, self._values, self._index = keys or Buffer(), values or Buffer(), index
        super().__init__()  # type: ignore[no-untyped-call]  # transformers leaves it without types

    @property
    def keys(self) -> Tensor | None:
        """All keys, of shape (batch, heads, tokens, size)."""
        return self._keys.states(self._index)

    @keys.setter
    def keys(self, states: Tensor | None) -> None:
        if states is None or not states.numel():
            self._keys.clear(self._index)
        else:
            self._leave_shared_buffers()
            self._keys.adopt(states)

    @property
    def values(self) -> Tensor | None:
        """All values, of shape (batch, heads, tokens, size)."""
        return self._values.states(self._index)

    @values.setter
    def values(self, states: Tensor | None) -> None:
        if states is None or not states.numel():
            self._values.clear(self._index)
        else:
            self._leave_shared_buffers()
            self._values.adopt(states)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Note dtype and device of the states; memory is allocated with the first append."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values of shape (batch, heads, tokens, size), and return all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys = self._keys.append(self._index, key_states)
        values = None if keys is None else self._values.append(self._index, value_states)
        if keys is not None and values is not None:
            return keys, values
        if keys is not None:
            self._keys.lengths[self._index] -= key_states.shape[-2]
        self._leave_shared_buffers()
        return self.update(key_states, value_states)

    def get_seq_length(self) -> int:
        """Return the number of cached tokens."""
        return self._keys.lengths[self._index]

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens; their number is negative, as in transformers."""
        if tokens_to_remove >= 0:
            super().crop(tokens_to_remove)  # removes nothing, or raises
            return
        for buffer in (self._keys, self._values):
            buffer.lengths[self._index] = max(buffer.lengths[self._index] + tokens_to_remove, 0)

    def _leave_shared_buffers(self) -> None:
        """Move this layer's states from the shared buffers to buffers of its own."""
        if len(self._keys.lengths) == 1:
            return
        shared, held, index = (self._keys, self._values), (self.keys, self.values), self._index
        self._keys, self._values, self._index = Buffer(), Buffer(), 0
        for before, buffer, states in zip(shared, (self._keys, self._values), held, strict=True):
            before.is_complete = False
            before.clear(index)
            if states is not None and states.numel():
                buffer.adopt(states)


def growing_layers(count: int, *, max_shared_bytes: int = MAX_SHARED_BYTES) -> list[GrowingLayer]:
    """Return layers that share one buffer of keys and one of values, as long as their states have one shape.

    Args:
        max_shared_bytes: Maximum size of each buffer.
    """
    keys, values = (Buffer(count, max_shared_bytes=max_shared_bytes) for _ in range(2))
    return [GrowingLayer(keys, values, index) for index in range(count)]


def shared_buffers(layers: Sequence[Any]) -> tuple[Buffer, ...]:
    """Return the two buffers that all these layers share; empty if they do not, or are not equally long."""
    if type(layers[0]) is not GrowingLayer or type(layers[-1]) is not GrowingLayer:
        return ()
    buffers = layers[0]._keys, layers[0]._values
    if buffers != (layers[-1]._keys, layers[-1]._values) or len(layers) != len(buffers[0].lengths):
        return ()
    return buffers if all(each.is_complete and len(set(each.lengths)) == 1 for each in buffers) else ()


class GrowingCache(DynamicCache):
    """A `DynamicCache` that does not copy its full-attention layers at every step; pass it as `past_key_values=`.

    `DynamicCache` concatenates, which copies every key and value for every token. Here each new token causes, on
    average, the copying of eight earlier tokens, and the buffers are an eighth larger. Sliding, chunked and recurrent
    layers are those of `DynamicCache`, because their size is bounded. For inference only: tensors are written in place,
    and a crop reuses their memory.

    Args:
        config: Configuration of the model; None makes full-attention layers as they are needed.
    """

    def __init__(self, config: PretrainedConfig | None = None) -> None:
        super().__init__(config=config)
        _replace_layers(self)


def make_growing(cache: Cache) -> None:
    """Replace the layers of an empty `DynamicCache` by growing ones; leave any other cache as it is."""
    is_empty = not any(getattr(layer, "is_initialized", True) for layer in cache.layers)
    if type(cache) is DynamicCache and is_empty and not cache.offloading:
        _replace_layers(cache)


def _replace_layers(cache: Cache) -> None:
    if all(type(layer) is DynamicLayer for layer in cache.layers):
        cache.layers = [*growing_layers(len(cache.layers))]
    else:  # sharing is only faster if all layers share
        cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    if cache.layer_class_to_replicate is DynamicLayer:
        cache.layer_class_to_replicate = GrowingLayer
