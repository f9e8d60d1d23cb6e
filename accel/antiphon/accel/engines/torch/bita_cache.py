"""A cache that shows learned keys and values behind the rows of a forward. Knows neither drafts nor who sees what."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from antiphon.accel.engines.torch.bita_weights import BitaWeights


class BitaCache(Cache):
    """Another cache, for one forward, in which a learned prefix follows the rows that are fed, in every layer.

    The prefix lies in the other cache until that forgets it, with the rows that were not accepted: nothing of it is
    left between two steps, so any cache of which rows can be taken back will do. Its order among the columns is of no
    matter to attention; who sees it is the mask's to say.
    """

    def __init__(self, cache: Cache, learned: BitaWeights) -> None:
        super().__init__(layers=cache.layers)
        self._cache = cache
        self._learned = learned

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the rows and the prefix of this layer, and return all that is held."""
        keys = _behind(key_states, self._learned.keys[layer_idx])
        values = _behind(value_states, self._learned.values[layer_idx])
        states: tuple[Tensor, Tensor] = self._cache.update(keys, values, layer_idx, *args, **kwargs)
        return states


def _behind(states: Tensor, prefix: Tensor) -> Tensor:
    return torch.cat([states, prefix.to(states).expand(states.shape[0], -1, -1, -1)], dim=2)
