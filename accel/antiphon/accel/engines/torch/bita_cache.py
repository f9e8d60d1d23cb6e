"""A cache that appends BiTA's learned keys and values to the rows of a forward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from antiphon.accel.engines.torch.bita_weights import BitaWeights


class BitaCache(Cache):
    """A view of another cache for one forward pass. The view adds a learned prefix after the rows.

    The prefix is stored in the other cache, and removed together with the rejected rows; so it does
    not remain between two steps. The other cache can be of any kind from which rows can be removed.
    The prefix may be in any columns of the cache, because the mask determines which rows attend to
    it.
    """

    def __init__(self, cache: Cache, weights: BitaWeights) -> None:
        super().__init__(layers=cache.layers)
        self._cache = cache
        self._weights = weights

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append the rows and the prefix to a layer, and return all of its keys and values."""
        keys = _append_prefix(key_states, self._weights.keys[layer_idx])
        values = _append_prefix(value_states, self._weights.values[layer_idx])
        states: tuple[Tensor, Tensor] = self._cache.update(keys, values, layer_idx, *args, **kwargs)
        return states


def _append_prefix(states: Tensor, prefix: Tensor) -> Tensor:
    """Append the prefix (heads, prefix, size) to states of shape (batch, heads, rows, size)."""
    return torch.cat([states, prefix.to(states).expand(states.shape[0], -1, -1, -1)], dim=2)
