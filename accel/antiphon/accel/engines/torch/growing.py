"""A cache that is written in place into buffers with room, not copied once for every token. Knows no drafts."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import prod
from typing import Any, cast

from torch import Tensor
from transformers import Cache, DynamicCache, PretrainedConfig
from transformers.cache_utils import DynamicLayer

ROOM = 64
"""For how many further tokens a new buffer has room at least; a long one has room for an eighth more than it holds."""

SHARED = 2**28
"""Bytes of the largest memory that layers share: while it grows, or is left, all of it is there twice."""


class Buffer:
    """States of ``layers`` layers, each of shape (..., tokens, size), in one memory that grows by an eighth.

    After a forward nothing of a layer is in the processor's caches any more. With the layers' memory in one tensor and
    their lengths in one array, rows are forgotten or moved in all layers at once, without touching each.

    The memory of several layers has at most ``shared`` bytes.
    """

    def __init__(self, layers: int = 1, *, shared: int = SHARED) -> None:
        self._shared = shared
        self.lengths = array("q", [0]) * layers
        self.is_whole = True  # no layer has left
        self._memory: Tensor | None = None  # (layers, ..., slots, size)
        self._own: tuple[Tensor, ...] = ()  # each layer's part of it
        self._slots = 0  # how many of them may be written: none of somebody else's

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_own": ()}  # a pickle would make copies of the views

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._take(self._memory, self._slots)

    def held(self, place: int) -> Tensor | None:
        """What the layer at this place holds, as a view of the memory."""
        return None if self._memory is None else self._own[place].narrow(-2, 0, self.lengths[place])

    def hold(self, states: Tensor) -> None:
        """Hold somebody else's states, without ever writing to them; for a buffer of one layer."""
        self._take(states[None], 0)
        self.lengths[0] = states.shape[-2]

    def release(self, place: int) -> None:
        """Forget what this layer holds; the memory is given back with its last states."""
        self.lengths[place] = 0
        if not any(self.lengths):
            self._take(None, 0)

    def append(self, place: int, fresh: Tensor) -> Tensor | None:
        """What the layer holds and then ``fresh``, as one view; None where that cannot lie with the other layers'."""
        length, tokens = self.lengths[place], fresh.shape[-2]
        room = self._own[place].narrow(-2, length, tokens) if length + tokens <= self._slots else None
        if room is None or not _are_alike(room, fresh):
            if not self._grow(length + tokens, fresh):
                return None
            room = self._own[place].narrow(-2, length, tokens)
        room.copy_(fresh)
        self.lengths[place] = length + tokens
        return self._own[place].narrow(-2, 0, length + tokens)

    def everywhere(self) -> Tensor:
        """What all layers hold, of shape (layers, ..., tokens, size), where they are equally long."""
        return cast(Tensor, self._memory).narrow(-2, 0, self.lengths[0])

    def crop(self, tokens: int) -> None:
        """Forget the last tokens of all layers, where they are equally long."""
        self.lengths = array("q", [self.lengths[0] - tokens]) * len(self.lengths)

    def _grow(self, tokens: int, fresh: Tensor) -> bool:
        """Take a larger memory; whether all layers can have one together."""
        shape = (len(self.lengths), *fresh.shape[:-2], tokens + max(tokens // 8, ROOM), fresh.shape[-1])
        held = None if self._memory is None else self._memory.narrow(-2, 0, max(self.lengths))
        is_apt = held is None or not held.numel() or _are_alike(held[0, ..., :1, :], fresh[..., :1, :])
        is_small = fresh.device.type == "cpu" and prod(shape) * fresh.itemsize <= self._shared
        if len(self.lengths) > 1 and not (is_apt and is_small and self.is_whole):
            return False
        memory = fresh.new_empty(shape)
        if held is not None and held.numel():
            memory.narrow(-2, 0, held.shape[-2]).copy_(held)
        self._take(memory, shape[-2])
        return True

    def _take(self, memory: Tensor | None, slots: int) -> None:
        self._memory, self._slots = memory, slots
        self._own = () if memory is None else tuple(each.data for each in memory)  # to be written with gradients, too


def _are_alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.device == other.device


class GrowingLayer(DynamicLayer):
    """A layer of full attention whose keys and values are views of two growing buffers.

    Several layers may share these: each has its ``place`` there. One that is given other states, of another shape, or
    too many for all to lie together leaves for buffers of its own.
    """

    def __init__(self, keys: Buffer | None = None, values: Buffer | None = None, place: int = 0) -> None:
        self._keys, self._values, self._place = keys or Buffer(), values or Buffer(), place
        super().__init__()  # type: ignore[no-untyped-call]  # transformers leaves it without types

    @property
    def keys(self) -> Tensor | None:
        """All keys, of shape (batch, heads, tokens, size)."""
        return self._keys.held(self._place)

    @keys.setter
    def keys(self, states: Tensor | None) -> None:
        if states is None or not states.numel():
            self._keys.release(self._place)
        else:
            self._leave()
            self._keys.hold(states)

    @property
    def values(self) -> Tensor | None:
        """All values, of shape (batch, heads, tokens, size)."""
        return self._values.held(self._place)

    @values.setter
    def values(self, states: Tensor | None) -> None:
        if states is None or not states.numel():
            self._values.release(self._place)
        else:
            self._leave()
            self._values.hold(states)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Remember what the states are like; there is no memory before there are states."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the new states behind the held ones, and return all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys = self._keys.append(self._place, key_states)
        values = None if keys is None else self._values.append(self._place, value_states)
        if keys is not None and values is not None:
            return keys, values
        if keys is not None:
            self._keys.lengths[self._place] -= key_states.shape[-2]
        self._leave()
        return self.update(key_states, value_states)

    def get_seq_length(self) -> int:
        """How many tokens are held."""
        return self._keys.lengths[self._place]

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens; their number is given as a negative one, as transformers does."""
        if tokens_to_remove >= 0:
            super().crop(tokens_to_remove)  # nothing, or it is refused
            return
        for buffer in (self._keys, self._values):
            buffer.lengths[self._place] = max(buffer.lengths[self._place] + tokens_to_remove, 0)

    def _leave(self) -> None:
        """From now on this layer has buffers of its own; what it held in shared ones is held by them."""
        if len(self._keys.lengths) == 1:
            return
        shared, held, place = (self._keys, self._values), (self.keys, self.values), self._place
        self._keys, self._values, self._place = Buffer(), Buffer(), 0
        for before, buffer, states in zip(shared, (self._keys, self._values), held, strict=True):
            before.is_whole = False
            before.release(place)
            if states is not None and states.numel():
                buffer.hold(states)


def growing_layers(count: int, *, shared: int = SHARED) -> list[GrowingLayer]:
    """So many layers that share their memory of ``shared`` bytes at most, as long as all hold states of one shape."""
    keys, values = Buffer(count, shared=shared), Buffer(count, shared=shared)
    return [GrowingLayer(keys, values, place) for place in range(count)]


def shared_buffers(layers: Sequence[Any]) -> tuple[Buffer, ...]:
    """The keys and the values of all these layers, where they lie in one buffer each and are equally long."""
    if type(layers[0]) is not GrowingLayer or type(layers[-1]) is not GrowingLayer:
        return ()
    buffers = layers[0]._keys, layers[0]._values
    if buffers != (layers[-1]._keys, layers[-1]._values) or len(layers) != len(buffers[0].lengths):
        return ()
    return buffers if all(each.is_whole and len(set(each.lengths)) == 1 for each in buffers) else ()


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
    if all(type(layer) is DynamicLayer for layer in cache.layers):
        cache.layers = [*growing_layers(len(cache.layers))]
    else:  # of some layers alone it saves nothing
        cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    if cache.layer_class_to_replicate is DynamicLayer:
        cache.layer_class_to_replicate = GrowingLayer
