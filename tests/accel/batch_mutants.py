"""Deliberate faults in batched forward passes, which tests must detect."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from antiphon.accel.engines.torch import batched_forward
from antiphon.accel.engines.torch.batched_forward import BatchedCache, Segment

Patch = pytest.MonkeyPatch


def segments_start_one_row_early(patch: Patch) -> None:
    """All sequences but the first start one row too early, at the last row of the previous sequence."""
    cut = batched_forward._segments

    def moved(fed: Any) -> list[Segment]:
        first, *others = cut(fed)
        return [first, *(replace(each, start=each.start - 1, end=each.end - 1) for each in others)]

    patch.setattr(batched_forward, "_segments", moved)


def masks_of_the_next_sequence(patch: Patch) -> None:
    """Each sequence has the mask of the next one."""
    cut = batched_forward._segments

    def swapped(fed: Any) -> list[Segment]:
        segments = cut(fed)
        others = segments[1:] + segments[:1]
        return [
            replace(own, masks={kind: crop_or_repeat(other.masks[kind], seen) for kind, seen in own.masks.items()})
            for own, other in zip(segments, others, strict=True)
        ]

    patch.setattr(batched_forward, "_segments", swapped)


def states_of_the_next_sequence(patch: Patch) -> None:
    """Each sequence attends to the keys and values of the next one."""
    update = BatchedCache.update

    def swapped(self: BatchedCache, keys: Tensor, values: Tensor, layer_idx: int, *given: Any) -> tuple[Tensor, Tensor]:
        outputs = update(self, keys, values, layer_idx, *given)
        own = self.states[layer_idx]
        self.states[layer_idx] = [
            (crop_or_repeat(other[0], mine[0]), crop_or_repeat(other[1], mine[1]))
            for mine, other in zip(own, own[1:] + own[:1], strict=True)
        ]
        return outputs

    patch.setattr(BatchedCache, "update", swapped)


def states_of_the_first_layer(patch: Patch) -> None:
    """Every layer attends to the keys and values of the first layer."""
    update = BatchedCache.update

    def first(self: BatchedCache, keys: Tensor, values: Tensor, layer_idx: int, *given: Any) -> tuple[Tensor, Tensor]:
        outputs = update(self, keys, values, layer_idx, *given)
        self.states[layer_idx] = self.states[0]
        return outputs

    patch.setattr(BatchedCache, "update", first)


def sequences_attend_to_each_other(patch: Patch) -> None:
    """In mode "concatenated", every sequence attends to the others."""
    join = batched_forward._mask

    def open_mask(cache: BatchedCache, kind: str, traits: Any, dtype: Any) -> Tensor:
        joined = join(cache, kind, traits, dtype)
        row = slot = 0
        for each in cache.segments:
            rows, slots = each.masks[kind].shape[2:]
            joined[..., row : row + rows, :slot] = joined[..., row : row + rows, slot + slots :] = 0
            row, slot = row + rows, slot + slots
        return joined

    patch.setattr(batched_forward, "_mask", open_mask)


def crop_or_repeat(states: Tensor, like: Tensor) -> Tensor:
    """Return a tensor cropped, or repeated, to the shape of another one."""
    for place, size in enumerate(like.shape):
        states = states.index_select(place, torch.arange(size) % states.shape[place])
    return states
