"""A KV cache that writes new tokens into buffers with spare slots, and seldom copies old tokens."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import Cache, DynamicCache, PretrainedConfig
from transformers.cache_utils import DynamicLayer

MIN_FREE_SLOTS = 64
"""Minimum number of spare slots of a new buffer, in tokens; a long buffer gets an eighth of its length."""


class Buffer:
    """States of shape (..., tokens, size) in a tensor that grows by an eighth when it is full."""

    def __init__(self) -> None:
        self.length = 0
        self._memory: Tensor | None = None  # (..., slots, size)
        self._slots = 0  # slots that may be written; 0 if the memory belongs to the caller

    @property
    def states(self) -> Tensor | None:
        """The states, as a view of the memory; None if there are none."""
        # `.data`, because the memory may be written while gradients are recorded.
        return None if self._memory is None else self._memory.data.narrow(-2, 0, self.length)

    def hold(self, states: Tensor | None) -> None:
        """Use the caller's tensor as the states, but never write to it.

        If ``states`` is None or has no tokens, the memory is freed.
        """
        is_empty = states is None or not states.numel()
        self._memory, self._slots = None if is_empty else states, 0
        self.length = 0 if states is None else states.shape[-2]

    def append(self, new_states: Tensor) -> Tensor:
        """Append states and return all of them, as one view."""
        start, tokens = self.length, new_states.shape[-2]
        if start + tokens > self._slots or not self._has_shape_of(new_states):
            self._grow(start + tokens, new_states)
        assert self._memory is not None
        self._memory.data.narrow(-2, start, tokens).copy_(new_states)
        self.length = start + tokens
        return self._memory.data.narrow(-2, 0, self.length)

    def _has_shape_of(self, states: Tensor) -> bool:
        held = self._memory
        if held is None or (held.dtype, held.device) != (states.dtype, states.device):
            return False
        return (*held.shape[:-2], held.shape[-1]) == (*states.shape[:-2], states.shape[-1])

    def _grow(self, tokens: int, new_states: Tensor) -> None:
        slots, held = tokens + max(tokens // 8, MIN_FREE_SLOTS), self.states
        memory = new_states.new_empty((*new_states.shape[:-2], slots, new_states.shape[-1]))
        if held is not None:
            memory.narrow(-2, 0, held.shape[-2]).copy_(held)
        self._memory, self._slots = memory, slots


class GrowingLayer(DynamicLayer):
    """A full-attention layer of a cache; its keys and values are views of two growing buffers."""

    def __init__(self) -> None:
        self._keys, self._values = Buffer(), Buffer()
        super().__init__()  # type: ignore[no-untyped-call]  # transformers leaves it without types

    @property
    def keys(self) -> Tensor | None:
        """All keys, of shape (batch, heads, tokens, size)."""
        return self._keys.states

    @keys.setter
    def keys(self, states: Tensor | None) -> None:
        self._keys.hold(states)

    @property
    def values(self) -> Tensor | None:
        """All values, of shape (batch, heads, tokens, size)."""
        return self._values.states

    @values.setter
    def values(self, states: Tensor | None) -> None:
        self._values.hold(states)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Record dtype and device of the states; memory is allocated by the first append."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values of shape (batch, heads, tokens, size), and return all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return self._keys.append(key_states), self._values.append(value_states)

    def get_seq_length(self) -> int:
        """Return the number of cached tokens."""
        return self._keys.length

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens; the argument is a negative number, as in transformers."""
        if tokens_to_remove >= 0:
            super().crop(tokens_to_remove)  # removes nothing, or raises
            return
        for buffer in (self._keys, self._values):
            buffer.length = max(buffer.length + tokens_to_remove, 0)


class GrowingCache(DynamicCache):
    """A `DynamicCache` that does not copy its full-attention layers at every step.

    Pass it to transformers as ``past_key_values``. `DynamicCache` copies all keys and values for
    every token, because it concatenates. Here a buffer is copied only when it grows by an eighth:
    on average eight earlier tokens are copied per new token. Sliding, chunked and recurrent layers
    stay as in `DynamicCache`, because their size is bounded. Use this cache for inference only:
    tensors are written in place, and a crop reuses their memory.

    Args:
        config: Configuration of the model; None: full-attention layers, created when needed.
    """

    def __init__(self, config: PretrainedConfig | None = None) -> None:
        super().__init__(config=config)
        _replace_layers(self)


def make_growing(cache: Cache) -> None:
    """Replace each layer of an empty `DynamicCache` with a `GrowingLayer`. Any other cache stays unchanged."""
    is_empty = not any(getattr(layer, "is_initialized", True) for layer in cache.layers)
    if type(cache) is DynamicCache and is_empty and not cache.offloading:
        _replace_layers(cache)


def _replace_layers(cache: Cache) -> None:
    cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    if cache.layer_class_to_replicate is DynamicLayer:
        cache.layer_class_to_replicate = GrowingLayer
