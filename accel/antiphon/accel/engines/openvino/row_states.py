"""Recurrent and convolutional states after the rows of a forward pass, computed with numpy.

OpenVINO's own operations for these layers write a full state per token, and take ten times as long
as a plain matrix product. Here, a pass reads each state once. What a row adds to the state is
stored as small factors, and only the state after the last kept row is written. The formulas are
those of `antiphon.accel.engines.torch.draft_states`, where a row's ancestors take the place of a chunk
(Yang et al. 2024, Gated Delta Networks, section 3.3; Dao and Gu 2024, Transformers are SSMs, section 6).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from antiphon.accel.drafting.tree import input_windows

Array = NDArray[np.float32]

CHUNK = 32
"""Maximum number of prompt tokens that are computed together. With 64, each token takes 40 % longer."""

L2_EPSILON = 1e-6
"""Added to the squared norm of queries and keys, as in transformers."""


class Ancestry:
    """The ancestors of each row.

    Args:
        mask: Whether row j is row i or an ancestor of it, shape (rows i, rows j).
        is_chain: Whether the ancestors of a row are all rows before it.
    """

    def __init__(self, mask: NDArray[np.bool_], *, is_chain: bool = False) -> None:
        self.is_chain = is_chain
        self._mask = mask
        self._lineage = mask.astype(np.float32)
        self._below = np.tril(self._lineage, -1)
        self._windows: dict[int, NDArray[np.int64]] = {}

    def decays(self, steps: Array) -> Array:
        """Return, for rows i and j, the factor by which the state after row j has decayed at row i.

        The factor is 0 unless j is i or an ancestor of i. Logarithms are summed only over the path
        from j to i, because a difference of two sums from the start would lose digits.

        Args:
            steps: Logarithm of each row's own decay, shape (heads, rows).

        Returns:
            Shape (heads, rows i, rows j).
        """
        sums = (self._lineage * steps[:, None]) @ self._below
        decays: Array = np.where(self._mask, np.exp(sums), np.float32(0))
        return decays

    def total_decays(self, steps: Array) -> Array:
        """Return the factor by which the state before the rows has decayed at each row, shape (heads, rows, 1)."""
        total: Array = np.exp(steps @ self._lineage.T)[..., None]
        return total

    def windows(self, size: int) -> NDArray[np.int64]:
        """Return `input_windows`, shape (rows, size)."""
        if size not in self._windows:
            self._windows[size] = input_windows(self._mask, size)
        return self._windows[size]


@cache
def _chain(rows: int) -> Ancestry:
    return Ancestry(np.tri(rows, dtype=np.bool_), is_chain=True)


class RowStates(Protocol):
    """The state of one layer after each row of a chunk."""

    def write(self, row: int, target: Array) -> None:
        """Write the state after a row to an array; -1 stands for the state before the first row."""


@dataclass(frozen=True, slots=True)
class Windows:
    """The inputs of a convolution: those before the rows, then the rows; shape (inputs, channels)."""

    inputs: Array
    windows: NDArray[np.int64]

    def write(self, row: int, target: Array) -> None:
        """See `RowStates.write`."""
        target[:] = self.inputs[self.windows[row] if row >= 0 else slice(len(target))]


@dataclass(frozen=True, slots=True)
class Factors:
    """A recurrent state as factors.

    Attributes:
        before: State before the first row, shape (heads, size, other size).
        decay: Result of `Ancestry.total_decays`.
        decays: Result of `Ancestry.decays`.
        left: A row adds the outer product of ``left`` and ``right``; shape (heads, rows, size).
        right: Shape (heads, rows, other size).
    """

    before: Array
    decay: Array
    decays: Array
    left: Array
    right: Array

    def write(self, row: int, target: Array) -> None:
        """See `RowStates.write`."""
        if row < 0:
            target[:] = self.before
            return
        np.multiply(self.before, self.decay[:, row, None], out=target)
        left = (self.left * self.decays[:, row, :, None]).swapaxes(1, 2)
        # `@` is slow for one row, which BLAS does not compute.
        target += left @ self.right if left.shape[2] > 1 else left * self.right


def convolve(ancestry: Ancestry, before: Array, rows: Array, weight: Array, bias: Array) -> tuple[Array, Windows]:
    """Apply a causal convolution to the last inputs on each row's path.

    Args:
        before: The inputs before the rows, shape (size, channels).
        rows: Shape (rows, channels).
        weight: Shape (size, channels).
        bias: Shape (channels,).

    Returns:
        Output of shape (rows, channels), and the states.
    """
    inputs, windows = np.concatenate([before, rows]), ancestry.windows(len(before))
    output = np.tile(bias, (len(rows), 1))
    for place, factor in enumerate(weight):
        start = 1 + place  # slices are faster than indices
        output += (inputs[start : start + len(rows)] if ancestry.is_chain else inputs[windows[:, place]]) * factor
    return output, Windows(inputs, windows)


def gated_delta_rule(
    ancestry: Ancestry, before: Array, query: Array, key: Array, value: Array, gate: Array, beta: Array
) -> tuple[Array, Factors]:
    """Compute the gated delta rule. Queries and keys are normalized.

    Args:
        before: Shape (heads, key size, value size).
        query: Shape (rows, key heads, key size); ``key`` has the same shape.
        value: Shape (rows, heads, value size).
        gate: Logarithm of each row's decay, shape (rows, heads).
        beta: Learning rate of each row, shape (rows, heads).

    Returns:
        Output of shape (rows, heads, value size), and the states.
    """
    rows, repeats = len(value), value.shape[1] // key.shape[1]
    query, key = (_by_head(each / np.sqrt(_squared_norm(each) + L2_EPSILON), repeats) for each in (query, key))
    decays, decay = ancestry.decays(gate.T), ancestry.total_decays(gate.T)
    rates = beta.T[..., None]
    scaled, query = key * rates, query * np.float32(query.shape[-1] ** -0.5)
    both = np.concatenate([scaled, query], axis=1)  # so that the state is read once
    read = (both * np.concatenate([decay, decay], axis=1)) @ before
    products = (both @ key.swapaxes(1, 2)) * np.concatenate([decays, decays], axis=1)
    written = value.swapaxes(0, 1) * rates - read[:, :rows]
    if rows > 1:  # each row corrects the writes of its ancestors, which are corrected too: a triangular system
        system = products[:, :rows]
        system[:, range(rows), range(rows)] = 1
        written = np.linalg.inv(system) @ written  # ten times as fast as `solve` for few rows
    output = read[:, rows:] + products[:, rows:] @ written
    return output.swapaxes(0, 1), Factors(before, decay, decays, key, written)


def selective_scan(
    ancestry: Ancestry, before: Array, dt: Array, writes: Array, inputs: Array, reads: Array, decay_rate: Array
) -> tuple[Array, Factors]:
    """Compute Mamba-2's recurrence.

    Args:
        before: Shape (heads, head size, state size).
        dt: Time step of each row, shape (rows, heads).
        writes: B of the paper, shape (rows, groups, state size); ``reads`` is C, of the same shape.
        inputs: Shape (rows, heads, head size).
        decay_rate: A of the paper, shape (heads,).

    Returns:
        Output of shape (rows, heads, head size), and the states.
    """
    repeats = inputs.shape[1] // writes.shape[1]
    reads, writes = _by_head(reads, repeats), _by_head(writes, repeats)
    scaled, steps = (inputs * dt[..., None]).swapaxes(0, 1), (dt * decay_rate).T
    decays, decay = ancestry.decays(steps), ancestry.total_decays(steps)
    output: Any = (reads * decay) @ before.swapaxes(1, 2) + ((reads @ writes.swapaxes(1, 2)) * decays) @ scaled
    return output.swapaxes(0, 1), Factors(before, decay, decays, scaled, writes)


class SequenceStates:
    """The states of one sequence in a forward pass.

    The rows are computed in chunks. States after rows of the last chunk can be written afterwards.

    Args:
        before: The state of each layer before the rows. It must not change until `write` was called.
        last: First row of the last chunk. The rows before it form a chain.
        mask: Whether row j is row i or an ancestor of it, for the rows from ``last`` on. None: they form a chain.
    """

    def __init__(
        self, before: Sequence[Array], num_rows: int, *, last: int = 0, mask: NDArray[np.bool_] | None = None
    ) -> None:
        self.num_rows = num_rows
        self._before = before
        self._last = last
        starts = [*range(0, last, CHUNK), last]
        self._chunks = [(start, end, _chain(end - start)) for start, end in pairwise(starts)]
        self._chunks.append((last, num_rows, _chain(num_rows - last) if mask is None else Ancestry(mask)))
        self._states: dict[int, RowStates] = {}

    def compute(
        self,
        layer: int,
        function: Callable[..., tuple[Array, RowStates]],
        rows: Sequence[Array],
        weights: Sequence[Array],
        output: Array,
    ) -> None:
        """Compute a layer's output for all rows.

        Args:
            rows: Arguments of the function with one entry per row.
            weights: Its other arguments.
            output: Written to; its first dimension is the rows.
        """
        before = self._before[layer]
        for start, end, ancestry in self._chunks:
            output[start:end], states = function(ancestry, before, *(each[start:end] for each in rows), *weights)
            if end < self.num_rows:
                before = np.empty_like(before)
                states.write(end - start - 1, before)
        self._states[layer] = states

    def write(self, row: int, targets: Sequence[Array]) -> None:
        """Write each layer's state after a row of the last chunk, or after the row before it, to an array."""
        for layer, target in enumerate(targets):
            self._states[layer].write(row - self._last, target)


def _by_head(states: Array, repeats: int) -> Array:
    """Return the states of groups of heads for each head: (rows, groups, size) becomes (heads, rows, size)."""
    return states.repeat(repeats, axis=1).swapaxes(0, 1)


def _squared_norm(states: Array) -> Array:
    norm: Array = np.square(states).sum(-1, keepdims=True)
    return norm
