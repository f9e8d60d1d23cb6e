"""The KV cache memory of the engine: arrays of blocks, and the data that all sequences share."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from math import prod
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.accel.engines.openvino.block_pool import BlockPool, StatePool
from antiphon.accel.engines.openvino.paged_inputs import BLOCK_SIZE, CacheShape

DTYPES: dict[str, Any] = {"f32": np.float32, "bf16": np.uint16}
"""Dtype in numpy for each precision. Values are only copied, so bfloat16 is stored as its bits."""


class BlockStorage:
    """Blocks with keys and values of `BLOCK_SIZE` tokens, and blocks with one recurrent state.

    The operating system provides memory when a block is first written to.

    Args:
        shapes: Shape of each layer's cache.
        precision: "f32" or "bf16".
        state_shapes: Shape of each recurrent or convolutional state.
        num_states: Number of blocks of states.
    """

    def __init__(
        self,
        shapes: Sequence[CacheShape],
        num_blocks: int,
        precision: str,
        state_shapes: Sequence[tuple[int, ...]] = (),
        num_states: int = 0,
    ) -> None:
        self._precision = precision
        self._names: dict[tuple[int, int], list[str]] = {}
        for layer, shape in enumerate(shapes):
            self._names.setdefault((shape.num_heads, shape.key_size), []).append(f"key_cache.{layer}")
            self._names.setdefault((shape.num_heads, shape.value_size), []).append(f"value_cache.{layer}")
        # One array for all layers of equal shape, (layers, blocks, heads, BLOCK_SIZE, head size): moving a row is then
        # one indexed assignment.
        self._states: dict[tuple[int, int], NDArray[Any]] = {
            (heads, size): np.zeros((len(names), num_blocks, heads, BLOCK_SIZE, size), dtype=DTYPES[precision])
            for (heads, size), names in self._names.items()
        }
        self._recurrent = [np.zeros((num_states, *shape), dtype=np.float32) for shape in state_shapes]

    def tensors(self) -> dict[str, Any]:
        """Return OpenVINO tensors that share this memory, by the names of the graph's inputs."""
        import openvino

        dtype = getattr(openvino.Type, self._precision)
        arrays = {
            name: states
            for shape, names in self._names.items()
            for name, states in zip(names, self._states[shape], strict=True)
        }
        return {
            name: openvino.Tensor(states, openvino.Shape(list(states.shape)), dtype) for name, states in arrays.items()
        }

    def layer_states(self, block: int) -> list[NDArray[np.float32]]:
        """Return views of the states of all layers in a block of states."""
        return [states[block] for states in self._recurrent]

    def clear(self, block: int) -> None:
        """Overwrite an unused block with zeros, so that the operating system provides its memory now."""
        for states in self._states.values():
            states[:, block] = 0

    def move_rows(self, sources: Sequence[tuple[int, int]], targets: Sequence[tuple[int, int]]) -> None:
        """Copy rows to other slots. All rows are read before the first is written.

        Args:
            sources: Slots to copy from, as (block, offset in the block).
        """
        source, target = np.array(sources).T, np.array(targets).T
        for states in self._states.values():
            states[:, target[0], :, target[1]] = states[:, source[0], :, source[1]]

    def copy_block(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first tokens of a block to another block.

        Args:
            num_tokens: Number of tokens, at most `BLOCK_SIZE`.
        """
        for states in self._states.values():
            states[:, target, :, :num_tokens] = states[:, source, :, :num_tokens]


@dataclass(frozen=True, slots=True)
class PagedMemory:
    """The state that all sequences of one engine share: blocks, their contents, and limits of the model.

    A sequence may keep accepted rows in its own thread while other sequences are in a forward pass, so ``lock`` must
    be held whenever blocks change their owner.

    Attributes:
        pool: Allocates blocks and caches prefixes.
        storage: Contents of the blocks.
        states: Allocates blocks of recurrent states; None if the model has none.
        window: Smallest sliding window of the model's layers, in tokens; None without windows.
        max_positions: Length of the model's context, in tokens; None if unlimited.
        lock: Guards pool and storage.
        abandoned_blocks: Blocks of sequences that were garbage-collected; the engine frees them later.
        abandoned_states: Blocks of states of garbage-collected sequences.
        ended_tenants: Tenants that were garbage-collected; the engine drops their prefixes later.
    """

    pool: BlockPool
    storage: BlockStorage
    states: StatePool | None = None
    window: int | None = None
    max_positions: int | None = None
    lock: RLock = field(default_factory=RLock)
    abandoned_blocks: deque[list[int]] = field(default_factory=deque)
    abandoned_states: deque[list[int]] = field(default_factory=deque)
    ended_tenants: deque[Hashable] = field(default_factory=deque)

    @property
    def num_states_available(self) -> int:
        """Number of blocks of states that can be allocated now."""
        return 0 if self.states is None else self.states.num_available

    def collect(self) -> None:
        """Free the blocks of garbage-collected sequences, and drop the prefixes of garbage-collected tenants."""
        while self.abandoned_blocks:
            self.pool.free(self.abandoned_blocks.popleft())
        while self.states is not None and self.abandoned_states:
            self.states.free(self.abandoned_states.popleft())
        while self.ended_tenants:
            tenant = self.ended_tenants.popleft()
            self.pool.forget_tenant(tenant)
            if self.states is not None:
                self.states.forget_tenant(tenant)


def state_bytes(shapes: Sequence[tuple[int, ...]]) -> int:
    """Return the bytes of one block of states, which holds a state of every layer with state, in float32."""
    return sum(map(prod, shapes)) * 4


def block_bytes(shapes: Sequence[CacheShape], precision: str) -> int:
    """Return the bytes of one block over all layers.

    Args:
        shapes: Shape of each layer's cache.
        precision: "f32" or "bf16".
    """
    numbers = sum(shape.num_heads * BLOCK_SIZE * (shape.key_size + shape.value_size) for shape in shapes)
    return numbers * int(np.dtype(DTYPES[precision]).itemsize)
