"""Compute the recurrent and convolutional states of a draft tree's rows in the forward pass that verifies the draft.

Layers with state call two functions that process a whole sequence: a causal convolution, and a scan
(the gated delta rule, or Mamba-2's scan). In the forward pass of a draft, both functions are
replaced. The replacements compute every row from its parent's state. They also return small
factors, whose product gives the state after any row. The cache holds the state before the draft
until `DraftStates.keep` writes the state after the last accepted row.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from threading import local
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus
from transformers import Cache, PreTrainedModel
from transformers.activations import ACT2FN

from antiphon.accel.drafting.tree import Tree, input_windows

Function = Callable[..., Any]
Scan = tuple[Tensor, "RowStates"]


class Ancestry:
    """The ancestors of each row of a forward pass, as tensors on the model's device.

    Attributes:
        convolutions: Number of convolutions computed along these ancestors so far.
    """

    def __init__(self, tree: Tree, device: torch.device) -> None:
        self.convolutions = 0
        self._mask = tree.ancestor_mask
        self._device = device
        self._sees = torch.from_numpy(tree.ancestor_mask).to(device)
        self._lineage = self._sees.float()  # [i, k]: row k is row i or an ancestor of it
        self._below = self._lineage.tril(-1)  # [k, j]: row k is below row j
        self._windows: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self._mask)

    @property
    def branches(self) -> bool:
        """Whether the rows branch, that is, do not form a single chain."""
        return not bool(np.array_equal(self._mask, np.tri(len(self), dtype=np.bool_)))

    def decays(self, steps: Tensor) -> Tensor:
        """Return, for rows i and j, the factor by which the state after row j has decayed at row i.

        The factor is 0 unless j is i or an ancestor of i. Logarithms are summed only over the path
        from j to i: the difference of two sums from the start would lose digits after strong
        decays.

        Args:
            steps: Logarithm of each row's own decay, of shape (batch, heads, rows).

        Returns:
            Shape (batch, heads, rows i, rows j).
        """
        sums = (self._lineage * steps[..., None, :]) @ self._below
        return sums.masked_fill(~self._sees, float("-inf")).exp()

    def total_decays(self, steps: Tensor) -> Tensor:
        """Return, for each row, the factor by which the state from before the draft has decayed after that row.

        ``steps`` is as in `decays`; the result has the shape (batch, heads, rows, 1).
        """
        return (steps @ self._lineage.T).exp()[..., None]

    def windows(self, size: int) -> Tensor:
        """Return `input_windows` on the model's device, shape (rows, size)."""
        if size not in self._windows:
            self._windows[size] = torch.from_numpy(input_windows(self._mask, size)).to(self._device)
        return self._windows[size]


@dataclass(frozen=True, slots=True)
class RowStates:
    """The recurrent state after each row of a forward pass, stored as factors much smaller than the states.

    Attributes:
        before: State before the first row, shape (batch, heads, size, other size).
        decay: Result of `Ancestry.total_decays`, shape (batch, heads, rows, 1).
        decays: Result of `Ancestry.decays`, shape (batch, heads, rows, rows).
        left: A row adds the outer product of ``left`` and ``right``; (batch, heads, rows, size).
        right: Shape (batch, heads, rows, other size).
    """

    before: Tensor
    decay: Tensor
    decays: Tensor
    left: Tensor
    right: Tensor

    def after(self, row: int) -> Tensor:
        """Return the state after a row, with the shape of ``before``."""
        weighted = self.left * self.decays[:, :, row, :, None]
        return self.before * self.decay[:, :, row, None] + weighted.transpose(-1, -2) @ self.right


class DraftStates(Cache):
    """A view of another cache (the wrapped cache) for the forward pass of a draft.

    Attention layers append the rows to the wrapped cache as usual. `keep` writes the states to this
    cache, too.

    Args:
        ancestry: The rows of the forward pass.
    """

    def __init__(self, cache: Cache, ancestry: Ancestry) -> None:
        super().__init__(layers=cache.layers)
        self.ancestry = ancestry
        self._cache = cache
        self._inputs: dict[tuple[int, int], Tensor] = {}
        self._states: dict[tuple[int, int], RowStates] = {}

    def update(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append the keys and values of an attention layer to the wrapped cache."""
        states: tuple[Tensor, Tensor] = self._cache.update(*args, **kwargs)
        return states

    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Return the earlier inputs of a convolution followed by the rows' inputs, shape (batch, channels, inputs)."""
        before = self.get_conv_state(layer_idx, state_idx)
        if before is None:
            if conv_kernel_size is None:
                raise ValueError(f"The state layer {layer_idx} does not say how many inputs it convolves.")
            before = conv_states.new_zeros((*conv_states.shape[:-1], conv_kernel_size))
        inputs = torch.cat([before, conv_states], dim=-1)
        self._inputs[layer_idx, state_idx] = inputs
        return inputs

    def update_recurrent_state(self, recurrent_states: Any, layer_idx: int, state_idx: int = 0, **kwargs: Any) -> Any:
        """Store the states of a layer's rows.

        Raises:
            TypeError: The layer computed only the state after the last row.
        """
        if not isinstance(recurrent_states, RowStates):
            raise TypeError(f"The state layer {layer_idx} computes the state after the last row only.")
        self._states[layer_idx, state_idx] = recurrent_states
        return recurrent_states

    @contextmanager
    def following(self) -> Iterator[None]:
        """In the context, this thread's forward pass computes a row from its parent row's state.

        Raises:
            RuntimeError: A convolution treated the branches of the draft as one sequence.
        """
        with replaced_functions({name: partial(each, self.ancestry) for name, each in _FUNCTIONS.items()}):
            yield
        if self.ancestry.branches and self.ancestry.convolutions < len(self._inputs):
            raise RuntimeError(
                "The convolutions of this model did not follow the branches of a draft, perhaps because it was "
                "compiled after its first request; compile it before, or decode with drafter='nothing'."
            )

    def keep(self, row: int) -> None:
        """Write the states after a row to the wrapped cache."""
        layers: list[Any] = self._cache.layers
        for (layer, index), inputs in self._inputs.items():
            size = inputs.shape[-1] - len(self.ancestry)
            window = inputs.index_select(-1, self.ancestry.windows(size)[row])
            layers[layer].update_conv_state(window, index, conv_kernel_size=size)
        for (layer, index), states in self._states.items():
            layers[layer].update_recurrent_state(states.after(row), index)


class _ThreadState(local):
    """The functions that this thread's forward pass calls instead of transformers' functions, by name."""

    functions: Mapping[str, Function] = MappingProxyType({})


_thread_state = _ThreadState()


def follow_drafts(model: PreTrainedModel) -> None:
    """Patch the modules of a model's layers, so that `replaced_functions` affects them."""
    for name in {type(module).__module__ for module in model.modules()}:
        namespace = vars(sys.modules[name]) if name in sys.modules else {}
        for function in _FUNCTIONS.keys() & namespace.keys():
            if not hasattr(namespace[function], "is_replaceable"):
                namespace[function] = _replaceable(function, namespace[function])


@contextmanager
def replaced_functions(functions: Mapping[str, Function]) -> Iterator[None]:
    """Inside the context, this thread calls these functions instead of transformers' functions.

    Call `follow_drafts` for the model first.
    """
    before, _thread_state.functions = _thread_state.functions, functions
    try:
        yield
    finally:
        _thread_state.functions = before


def _replaceable(name: str, plain: Function) -> Function:
    @wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        function = plain if torch.compiler.is_compiling() else _thread_state.functions.get(name, plain)
        return function(*args, **kwargs)

    call.is_replaceable = True  # type: ignore[attr-defined]
    return call


def _convolve(
    ancestry: Ancestry,
    hidden_states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **_: Any,
) -> Tensor:
    """Apply the convolution to the last inputs on each row's path.

    Args:
        hidden_states: Earlier inputs, then the rows; shape (batch, channels, inputs).
        weight: Shape (channels, size).

    Returns:
        Shape (batch, channels, rows).
    """
    ancestry.convolutions += 1
    size, rows = weight.shape[-1], len(ancestry)
    earlier = hidden_states.shape[-1] - rows
    windows = ancestry.windows(size) + (earlier - size)
    inputs = hidden_states.to(weight.dtype).transpose(1, 2).contiguous()  # selected faster
    output = (inputs[:, windows] * weight.T).sum(2)
    output = output if bias is None else output + bias
    output = output if activation is None else ACT2FN[activation](output)
    return output.to(hidden_states.dtype).transpose(1, 2)


def _gated_delta_rule(
    ancestry: Ancestry,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> Scan:
    """Compute the gated delta rule for every row.

    The formula is transformers' formula for chunks; here, the ancestors of a row take the place of
    a chunk.

    Args:
        query: Shape (batch, rows, key heads, key size); ``key`` has the same shape.
        value: Shape (batch, rows, heads, value size).
        g: Logarithm of each row's decay, shape (batch, rows, heads).
        beta: Learning rate of each row, shape (batch, rows, heads).

    Returns:
        Output of shape (batch, rows, heads, value size), and the states.
    """
    dtype, repeats = query.dtype, value.shape[2] // key.shape[2]
    query, key = (states.repeat_interleave(repeats, dim=2) for states in (query, key))
    query, key, value, beta, g = (states.transpose(1, 2).float() for states in (query, key, value, beta, g))
    if use_qk_l2norm_in_kernel:
        query, key = (states * torch.rsqrt(states.square().sum(-1, keepdim=True) + 1e-6) for states in (query, key))
    query = query * query.shape[-1] ** -0.5
    before = _before(initial_state, key, value)
    decays, decay = ancestry.decays(g), ancestry.total_decays(g)
    scaled = key * beta[..., None]
    errors = value * beta[..., None] - (scaled * decay) @ before
    # Each row corrects the writes of its ancestors, which are corrected too: a triangular system.
    system = (scaled @ key.transpose(-1, -2)) * decays
    written = torch.linalg.solve_triangular(system, errors, upper=False, unitriangular=True)
    output = (query * decay) @ before + ((query @ key.transpose(-1, -2)) * decays) @ written
    return output.transpose(1, 2).to(dtype).contiguous(), RowStates(before, decay, decays, key, written)


def _mamba2_scan(
    ancestry: Ancestry,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,  # noqa: N803  # the names of transformers, which are passed as keywords
    B: Tensor,  # noqa: N803
    C: Tensor,  # noqa: N803
    D: Tensor | None = None,  # noqa: N803
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    **_: Any,
) -> Scan:
    """Compute Mamba-2's recurrence for every row; ``dt`` is not clamped, as in plain decoding.

    Args:
        hidden_states: Shape (batch, rows, heads, head size).
        dt: Shape (batch, rows, heads).
        A: Shape (heads,).
        B: Shape (batch, rows, groups, state size); ``C`` has the same shape.

    Returns:
        Output of shape (batch, rows, heads, head size), and the states.
    """
    dt = dt if dt_bias is None else dt + dt_bias.to(dt.dtype)
    dt = (softplus(dt) if dt_softplus else dt).float()
    repeats = hidden_states.shape[2] // B.shape[2]
    reads, writes = (states.float().repeat_interleave(repeats, dim=2).transpose(1, 2) for states in (C, B))
    inputs = hidden_states.float()
    scaled = (inputs * dt[..., None]).transpose(1, 2)
    steps = (dt * A.float()).transpose(1, 2)
    before = _before(initial_states, scaled, writes)
    decays, decay = ancestry.decays(steps), ancestry.total_decays(steps)
    output = (reads * decay) @ before.transpose(-1, -2) + ((reads @ writes.transpose(-1, -2)) * decays) @ scaled
    output = output.transpose(1, 2)
    output = output if D is None else output + inputs * D[:, None]
    return output.contiguous(), RowStates(before, decay, decays, scaled, writes)


def _before(state: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    """Return the state before the rows in float32; zeros if there is no state yet."""
    if state is not None:
        return state.float()
    return left.new_zeros((*left.shape[:2], left.shape[-1], right.shape[-1]))


_FUNCTIONS: dict[str, Function] = {
    "causal_conv1d_fn": _convolve,
    "torch_chunk_gated_delta_rule": _gated_delta_rule,
    "mamba2_chunk_scan": _mamba2_scan,
}
"""The replacements of transformers' functions in the forward pass of a draft, by name."""
