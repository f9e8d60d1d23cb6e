"""A cache that is written in place into buffers with room, not copied once for every token. Knows no drafts."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import Cache, DynamicCache, PretrainedConfig
from transformers.cache_utils import DynamicLayer

ROOM = 64
"""For how many further tokens a new buffer has room at least; a long one has room for an eighth more than it holds."""


class Buffer:
    """Memory for states of shape (..., tokens, size) that grows by an eighth; what is held stands at its front."""

    def __init__(self) -> None:
        self.memory: Tensor | None = None

    def append(self, held: Tensor | None, fresh: Tensor) -> Tensor:
        """``held`` and then ``fresh``, as one view of the buffer, of shape (..., tokens, size).

        ``held`` is copied only where it does not stand at the front already: in a buffer that is full, or after
        somebody has selected, repeated or moved the states in between.
        """
        held = held if held is not None and held.numel() else None
        length = 0 if held is None else held.shape[-2]
        total = length + fresh.shape[-2]
        memory = self.memory
        if memory is None or not _holds(memory, held, fresh, total):
            memory = fresh.new_empty((*fresh.shape[:-2], total + max(total // 8, ROOM), fresh.shape[-1]))
            if held is not None:
                memory[..., :length, :] = held
            self.memory = memory
        memory[..., length:total, :] = fresh
        return memory[..., :total, :]


def _holds(memory: Tensor, held: Tensor | None, fresh: Tensor, total: int) -> bool:
    """Whether the buffer begins with what is held and has room and the right form for what comes."""
    alike = memory.shape[:-2] == fresh.shape[:-2] and (memory.dtype, memory.device) == (fresh.dtype, fresh.device)
    if not alike or total > memory.shape[-2]:
        return False
    return held is None or (held.data_ptr(), held.stride()) == (memory.data_ptr(), memory.stride())


class GrowingLayer(DynamicLayer):
    """A layer of full attention whose keys and values are views of two growing buffers."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]  # transformers leaves it without types
        self._keys = Buffer()
        self._values = Buffer()

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the new states behind the held ones, and return all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys = self._keys.append(self.keys, key_states)
        self.values = self._values.append(self.values, value_states)
        return self.keys, self.values

    def reset(self) -> None:
        """Forget everything, and give the memory back."""
        super().reset()
        self._keys, self._values = Buffer(), Buffer()


class GrowingCache(DynamicCache):
    """A `DynamicCache` that does not copy its full-attention layers at every step; pass it as `past_key_values=`.

    `DynamicCache` concatenates, which copies every key and value for every token. Here a token costs its own row, and
    eight rows' copy in the long run, for an eighth more memory. Sliding, chunked and recurrent layers are those of
    `DynamicCache`, whose size is bounded. For inference alone: its tensors are written in place, and a crop reuses
    their memory.
    """

    def __init__(self, config: PretrainedConfig | None = None) -> None:
        super().__init__(config=config)
        _replace_layers(self)


def let_grow(cache: Cache) -> None:
    """Have a `DynamicCache` that is still empty written in place as well; any other cache stays as it is."""
    is_empty = not any(getattr(layer, "is_initialized", True) for layer in cache.layers)
    if type(cache) is DynamicCache and is_empty and not cache.offloading:
        _replace_layers(cache)


def _replace_layers(cache: Cache) -> None:
    cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    if cache.layer_class_to_replicate is DynamicLayer:
        cache.layer_class_to_replicate = GrowingLayer
