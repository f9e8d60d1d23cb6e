"""The memory of keys and values: one array of blocks for each layer, which forwards read and write. Knows no texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.accel.engines.openvino.paged_attention import BLOCK, Heads

KINDS: dict[str, Any] = {"f32": np.float32, "bf16": np.uint16}
"""How numpy holds a number of each precision; it has no bfloat16, and need not count with it."""


class BlockStorage:
    """``blocks`` blocks of `BLOCK` tokens for every layer.

    The system gives it page by page as blocks are first written to: what is not used takes no room.
    """

    def __init__(self, heads: Sequence[Heads], blocks: int, precision: str) -> None:
        self.blocks = blocks
        self._precision = precision
        self._names: dict[tuple[int, int], list[str]] = {}
        for layer, own in enumerate(heads):
            self._names.setdefault((own.count, own.key_size), []).append(f"key_cache.{layer}")
            self._names.setdefault((own.count, own.value_size), []).append(f"value_cache.{layer}")
        # All layers of one shape in one array: moving a row is one indexed assignment.
        self._states: dict[tuple[int, int], NDArray[Any]] = {
            (count, size): np.zeros((len(names), blocks, count, BLOCK, size), dtype=KINDS[precision])
            for (count, size), names in self._names.items()
        }

    def tensors(self) -> dict[str, Any]:
        """Each layer's keys and values under the names of the graph's inputs, over this very memory."""
        import openvino

        kind = getattr(openvino.Type, self._precision)
        return {
            name: openvino.Tensor(states, openvino.Shape(list(states.shape)), kind)
            for shape, names in self._names.items()
            for name, states in zip(names, self._states[shape], strict=True)
        }

    def touch(self, block: int) -> None:
        """Write to a block whose states count for nothing: the system gives it memory now, and not in a forward."""
        for states in self._states.values():
            states[:, block] = 0

    def move(self, sources: Sequence[tuple[int, int]], targets: Sequence[tuple[int, int]]) -> None:
        """Copy slots, each a block and a place in it, to others; all are read before the first is written."""
        source, target = np.array(sources).T, np.array(targets).T
        for states in self._states.values():
            states[:, target[0], :, target[1]] = states[:, source[0], :, source[1]]

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy the first tokens of a block to another."""
        for states in self._states.values():
            states[:, target, :, :tokens] = states[:, source, :, :tokens]


def block_bytes(heads: Sequence[Heads], precision: str) -> int:
    """What one block takes, over all layers."""
    numbers = sum(own.count * BLOCK * (own.key_size + own.value_size) for own in heads)
    return numbers * int(np.dtype(KINDS[precision]).itemsize)
