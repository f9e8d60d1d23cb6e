"""A KV cache of fixed size for compiled steps.

A step writes its rows to given slots. The mask determines the slots to which a row attends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from threading import Lock
from types import FunctionType
from typing import Any, Protocol, cast
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import StaticLayer

from antiphon.accel.engines.torch.attention import override_attention
from antiphon.accel.engines.torch.packed_attention import PACKED
from antiphon.accel.engines.torch.traits import Traits

BUCKETS = (1, 4, 8, 16, 32, 64)
"""Numbers of rows of compiled steps. A step is padded to the next of these numbers."""

MIN_SLOTS = 1024
"""Number of slots of the smallest cache; each larger size has twice as many slots."""

BACKEND: Any = "inductor"
"""Backend of `torch.compile`."""

MAX_LOGIT_ERROR = 0.05
"""Maximum mean difference from the uncompiled step's logits, in standard deviations."""

TOKENS, POSITIONS, SLOTS, ANCESTORS = range(4)
"""The four lines of a step's input array ("plan"): each row's token id, position, slot and bit set of ancestors."""

StepOutputs = tuple[Tensor, Tensor, tuple[Tensor, ...]]
"""Logits (rows, vocab), argmax (rows,), and hidden states (rows, hidden) of the layers that a draft head reads."""

CompiledStep = Callable[[PreTrainedModel], StepOutputs]


class Occupant(Protocol):
    """A sequence that occupies a slot cache with its keys and values."""

    is_mid_step: bool
    """Whether the sequence's last forward pass has written rows that are not yet kept or rejected."""

    def leave(self) -> None:
        """Copy the sequence's keys and values out of the slot cache, before another sequence gets it."""


class SlotLayer(StaticLayer):
    """A full-attention layer of a cache that writes rows to given slots, and returns all slots.

    Args:
        slots: Slots of the next rows, shape (max rows,); the same tensor for every step.
    """

    def __init__(self, size: int, slots: Tensor) -> None:
        super().__init__(max_cache_len=size)
        self.slots = slots

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the rows (1, heads, rows, size) in place, and return all slots, including unused ones."""
        keys, values = cast(Tensor, self.keys), cast(Tensor, self.values)
        slots = self.slots[: key_states.shape[-2]]
        return keys.index_copy_(2, slots, key_states), values.index_copy_(2, slots, value_states)


class SlotCache:
    """Slots for one sequence at a time, and one compiled step for each of the `BUCKETS`.

    On a GPU the first call of a step captures it as a CUDA graph, and later calls replay the graph. A sequence
    occupies the cache until another sequence acquires it between two steps.

    Args:
        traits: Traits of the model, with the level "tree".
        compiles: Compile steps with `torch.compile`; on a GPU, this precedes the capture.
        hidden_states: Indices of the hidden states that steps return.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        traits: Traits,
        size: int,
        *,
        compiles: bool,
        hidden_states: tuple[int, ...] = (),
        backend: Any = BACKEND,
    ) -> None:
        self.size = size
        self._traits = traits
        self._compiles = compiles
        self._hidden_states = hidden_states
        self._backend = backend
        self._plan = torch.zeros((4, BUCKETS[-1]), dtype=torch.long, device=model.device)
        self._used = torch.zeros(size, dtype=torch.bool, device=model.device)
        self._shifts = torch.arange(BUCKETS[-1], device=model.device)
        layers: list[Any] = [SlotLayer(size, self._plan[SLOTS]) for _ in traits.layer_kinds]
        self.cache = Cache(layers=layers)
        self._steps: dict[int, CompiledStep] = {}
        self._lock = Lock()
        self._occupant: Callable[[], Occupant | None] = lambda: None

    def acquire(self, occupant: Occupant) -> bool:
        """Give the cache to a sequence for its next step; return False if another sequence is in a step."""
        with self._lock:
            before = self._occupant()
            if before is not None and before is not occupant:
                if before.is_mid_step:
                    return False
                before.leave()
            self._occupant = ref(occupant)
            occupant.is_mid_step = True
            return True

    def release(self, occupant: Occupant) -> None:
        """If a sequence occupies the cache, make the sequence copy its keys and values elsewhere."""
        with self._lock:
            if self._occupant() is occupant:
                occupant.leave()
                self._occupant = lambda: None

    @torch.inference_mode(False)
    @torch.no_grad()
    def load(self, layers: Sequence[Any]) -> int:
        """Copy the states (1, heads, tokens, size) of other layers to the first slots; return the number of tokens."""
        length = 0
        slot_layers: list[Any] = list(self.cache.layers)
        for slot_layer, layer in zip(slot_layers, layers, strict=True):
            if not slot_layer.is_initialized:
                slot_layer.lazy_initialization(layer.keys, layer.values)
            length = layer.keys.shape[-2]
            slot_layer.keys[..., :length, :] = layer.keys
            slot_layer.values[..., :length, :] = layer.values
        return length

    def read(self, slots: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Return, for each layer, a copy of the keys and values in the given slots, in this order."""
        index = torch.tensor(slots, device=self._used.device)
        layers: list[Any] = list(self.cache.layers)
        return [(layer.keys.index_select(2, index), layer.values.index_select(2, index)) for layer in layers]

    @torch.inference_mode(False)
    @torch.no_grad()
    def run(self, model: PreTrainedModel, plan: NDArray[np.int64], used: NDArray[np.bool_]) -> StepOutputs:
        """Run one step.

        Args:
            plan: Token, position, slot and ancestors of each row, of shape (4, rows); rows is one of the `BUCKETS`.
            used: Slots to which every row attends, shape (size,).

        Returns:
            Outputs in memory that the next step overwrites.
        """
        rows = plan.shape[1]
        self._plan[:, :rows] = torch.from_numpy(plan).to(self._plan.device)
        self._used.copy_(torch.from_numpy(used))
        with override_attention(model, PACKED) if self._traits.uses_packed_attention else nullcontext():
            if rows not in self._steps:
                self._steps[rows] = self._make(model, rows)
            return self._steps[rows](model)

    def _make(self, model: PreTrainedModel, rows: int) -> CompiledStep:
        """Compile or capture the step for a number of rows, and check its logits.

        Raises:
            RuntimeError: The logits differ from the logits of the uncompiled step.
        """
        step: CompiledStep = self._step(rows)
        expected = step(model)[0]
        if self._compiles:
            step = torch.compile(step, fullgraph=True, dynamic=False, backend=self._backend)
        if self._plan.device.type == "cuda":
            step = _capture_graph(step, model)
        error = (step(model)[0].float() - expected.float()).abs().mean() / expected.float().std()
        if not error <= MAX_LOGIT_ERROR:
            raise RuntimeError(f"A step of {rows} rows gave other logits ({error:.3f} standard deviations apart).")
        return step

    def _step(self, rows: int) -> CompiledStep:
        # A CUDA graph reads these tensors by address; only this object keeps them alive.
        plan, used, shifts, cache = self._plan[:, :rows], self._used, self._shifts[:rows], self.cache
        layers = self._hidden_states
        wanted: dict[str, Any] = {"output_hidden_states": list(layers)} if layers else {}

        def step(model: PreTrainedModel) -> StepOutputs:  # the closure outlives the model
            # 1. Mask (1, 1, rows, slots): a row attends to the used slots and to its ancestors.
            ancestors = (plan[ANCESTORS][:, None] >> shifts) & 1 == 1
            sees = used.repeat(rows, 1).index_copy(1, plan[SLOTS], ancestors)[None, None]
            mask = torch.zeros_like(sees, dtype=model.dtype).masked_fill(~sees, torch.finfo(model.dtype).min)
            # 2. Forward pass: `SlotLayer.update` writes the rows to their slots.
            outputs = model(
                input_ids=plan[TOKENS][None],
                position_ids=plan[POSITIONS][None],
                attention_mask=mask,
                past_key_values=cache,
                use_cache=True,
                **wanted,
            )
            logits = outputs.logits[0]
            return logits, logits.argmax(dim=-1), tuple([outputs.hidden_states[layer][0] for layer in layers])

        # torch.compile counts recompilations by code object and stops at eight, so each step gets its own code object.
        return FunctionType(
            step.__code__.replace(co_name=f"step_of_{rows}_rows_in_{self.size}_slots"),
            step.__globals__,
            closure=step.__closure__,
        )


def _capture_graph(step: CompiledStep, model: PreTrainedModel) -> CompiledStep:
    """Capture the step as a CUDA graph.

    The step can be run repeatedly, because it writes the same states to the same slots.
    """
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it without types
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # run first, so that one-time compilation and allocation are not captured
        for _ in range(2):
            step(model)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        outputs = step(model)

    def replay(model: PreTrainedModel) -> StepOutputs:
        graph.replay()
        return outputs

    vars(replay)["captured"] = step  # its kernels must stay loaded
    return replay


class SlotCachePool:
    """The slot caches of one model, by size.

    A sequence gets the smallest cache that fits its tokens. Sequences take turns in a cache.
    """

    def __init__(self, *, min_slots: int = MIN_SLOTS, backend: Any = BACKEND) -> None:
        self._min_slots = min_slots
        self._backend = backend
        self._caches: dict[tuple[object, ...], SlotCache] = {}

    @torch.inference_mode(False)  # the cache outlives the request
    def get(
        self,
        model: PreTrainedModel,
        traits: Traits,
        tokens: int,
        *,
        compiles: bool,
        hidden_states: tuple[int, ...] = (),
    ) -> SlotCache:
        """Return the smallest cache for this number of tokens. Create it on first use."""
        size = self._min_slots
        while size < tokens:
            size *= 2
        setting = (traits.implementation, traits.uses_packed_attention, model.dtype, str(model.device))
        key = (size, *setting, compiles, hidden_states)
        if key not in self._caches:
            self._caches[key] = SlotCache(
                model, traits, size, compiles=compiles, hidden_states=hidden_states, backend=self._backend
            )
        return self._caches[key]
