"""Fixed memory for steps of fixed shapes: keys and values lie in slots, and a forward writes where it is told to.

Knows a model, who has the memory, and how its steps are compiled; no texts, and no drafts: rows, and slots they see.
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

from antiphon.accel.engines.torch.attention import lent
from antiphon.accel.engines.torch.packed import PACKED
from antiphon.accel.engines.torch.traits import Traits

BUCKETS = (1, 4, 8, 16, 32, 64)
"""How many rows a step may have: draft rows and the root, filled up to the next of these."""

SMALLEST = 1024
"""Slots of the smallest memory; the next ones have twice as many each."""

BACKEND: Any = "inductor"
"""What `torch.compile` compiles with."""

APART = 0.05
"""How far logits may be from those of the same step as it is, in standard deviations: half precision rounds so."""

IDS, POSITIONS, PLACES, ANCESTORS = range(4)
"""The lines of a plan: each row's token, position and slot, and as bits the rows that it sees."""

CompiledStep = Callable[[PreTrainedModel], tuple[Tensor, Tensor]]


class Occupant(Protocol):
    """A text whose keys and values lie in a memory for now."""

    is_midway: bool
    """Whether a forward of it has written rows that are not yet kept or forgotten."""

    def leave(self) -> None:
        """Take keys and values along."""


class SlotLayer(StaticLayer):
    """A layer of full attention that writes its rows to the slots that a plan names, and reads them all."""

    def __init__(self, size: int, places: Tensor) -> None:
        super().__init__(max_cache_len=size)
        self.places = places

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the rows in place; masks say which slots hold something."""
        keys, values = cast(Tensor, self.keys), cast(Tensor, self.values)
        places = self.places[: key_states.shape[-2]]
        return keys.index_copy_(2, places, key_states), values.index_copy_(2, places, value_states)


class Memory:
    """``size`` slots for one text at a time, and the steps over them, one for each of the `BUCKETS`.

    On a GPU a step is captured as a CUDA graph, with ``compiles`` out of code that `torch.compile` has made, and every
    call after the first replays it. Whoever claims the memory has it until somebody else does between two steps.
    ``backend`` is what `torch.compile` compiles with.
    """

    def __init__(
        self, model: PreTrainedModel, traits: Traits, size: int, *, compiles: bool, backend: Any = BACKEND
    ) -> None:
        self.size = size
        self._traits = traits
        self._compiles = compiles
        self._backend = backend
        self._plan = torch.zeros((4, BUCKETS[-1]), dtype=torch.long, device=model.device)
        self._seen = torch.zeros(size, dtype=torch.bool, device=model.device)
        layers: list[Any] = [SlotLayer(size, self._plan[PLACES]) for _ in traits.kinds]
        self.cache = Cache(layers=layers)
        self._steps: dict[int, CompiledStep] = {}
        self._lock = Lock()
        self._occupant: Callable[[], Occupant | None] = lambda: None

    def claim(self, occupant: Occupant) -> bool:
        """Give the memory to a text, whose step then begins; false while another one is in the midst of its own."""
        with self._lock:
            before = self._occupant()
            if before is not None and before is not occupant:
                if before.is_midway:
                    return False
                before.leave()
            self._occupant = ref(occupant)
            occupant.is_midway = True
            return True

    def has(self, occupant: Occupant) -> bool:
        """Whether it is this text that lies here."""
        return self._occupant() is occupant

    def vacate(self, occupant: Occupant) -> None:
        """Have the text take its keys and values along, if it is this one's that lie here."""
        with self._lock:
            if self.has(occupant):
                occupant.leave()
                self._occupant = lambda: None

    @torch.inference_mode(False)
    @torch.no_grad()
    def load(self, layers: Sequence[Any]) -> int:
        """Copy the states of other layers, of shape (1, heads, tokens, size), to the first slots; how many tokens."""
        length = 0
        mine: list[Any] = list(self.cache.layers)
        for slots, layer in zip(mine, layers, strict=True):
            if not slots.is_initialized:
                slots.lazy_initialization(layer.keys, layer.values)
            length = layer.keys.shape[-2]
            slots.keys[..., :length, :] = layer.keys
            slots.values[..., :length, :] = layer.values
        return length

    def read(self, places: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """For each layer a copy of the keys and of the values in these slots, in this order."""
        index = torch.tensor(places, device=self._seen.device)
        layers: list[Any] = list(self.cache.layers)
        return [(layer.keys.index_select(2, index), layer.values.index_select(2, index)) for layer in layers]

    @torch.inference_mode(False)
    @torch.no_grad()
    def run(self, model: PreTrainedModel, plan: NDArray[np.int64], seen: NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
        """One step of as many rows as the plan has, a bucket's: logits (rows, vocab) and the best token of each row.

        ``plan`` has shape (4, rows) and ``seen``, of shape (size,), says which slots every row sees. What is returned
        is the graph's own memory, which the next step overwrites.
        """
        rows = plan.shape[1]
        self._plan[:, :rows] = torch.from_numpy(plan).to(self._plan.device)
        self._seen.copy_(torch.from_numpy(seen))
        with lent(model, PACKED) if self._traits.packs else nullcontext():
            if rows not in self._steps:
                self._steps[rows] = self._make(model, rows)
            return self._steps[rows](model)

    def _make(self, model: PreTrainedModel, rows: int) -> CompiledStep:
        """The step, compiled or captured, whose output has just been compared with that of the step as it is."""
        step: CompiledStep = self._step(rows)
        expected, _ = step(model)
        if self._compiles:
            step = torch.compile(step, fullgraph=True, dynamic=False, backend=self._backend)
        if self._plan.device.type == "cuda":
            step = _captured(step, model)
        apart = (step(model)[0].float() - expected.float()).abs().mean() / expected.float().std()
        if not apart <= APART:
            raise RuntimeError(f"A step of {rows} rows gave other logits ({apart:.3f} standard deviations apart).")
        return step

    def _step(self, rows: int) -> CompiledStep:
        shifts = torch.arange(rows, device=self._plan.device)
        plan, seen, cache = self._plan[:, :rows], self._seen, self.cache

        def step(model: PreTrainedModel) -> tuple[Tensor, Tensor]:  # not of the closure, which outlives the model
            ancestors = (plan[ANCESTORS][:, None] >> shifts) & 1 == 1
            sees = seen.repeat(rows, 1).index_copy(1, plan[PLACES], ancestors)[None, None]
            mask = torch.zeros_like(sees, dtype=model.dtype).masked_fill(~sees, torch.finfo(model.dtype).min)
            logits = model(
                input_ids=plan[IDS][None],
                position_ids=plan[POSITIONS][None],
                attention_mask=mask,
                past_key_values=cache,
                use_cache=True,
            ).logits[0]
            return logits, logits.argmax(dim=-1)

        # torch.compile counts the shapes of a function by its code, and eight are its limit: each step has its own.
        return FunctionType(
            step.__code__.replace(co_name=f"step_of_{rows}_rows_in_{self.size}_slots"),
            step.__globals__,
            closure=step.__closure__,
        )


def _captured(step: CompiledStep, model: PreTrainedModel) -> CompiledStep:
    """The step as a CUDA graph. Run again and again, a step writes the same states to the same slots."""
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it without types
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # what is compiled or allocated once must not be part of the graph
        for _ in range(2):
            step(model)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        outputs = step(model)

    def replay(model: PreTrainedModel) -> tuple[Tensor, Tensor]:
        graph.replay()
        return outputs

    return replay


class Memories:
    """The memories of one model: every request is given the smallest one that will do, in turn with others.

    The ``smallest`` of all has so many slots.
    """

    def __init__(self, *, smallest: int = SMALLEST, backend: Any = BACKEND) -> None:
        self._smallest = smallest
        self._backend = backend
        self._known: dict[tuple[object, ...], Memory] = {}

    @property
    def sizes(self) -> list[int]:
        """How many slots each of them has that was needed until now."""
        return sorted(memory.size for memory in self._known.values())

    @torch.inference_mode(False)  # it outlives the request that asks for it
    def for_tokens(self, model: PreTrainedModel, traits: Traits, tokens: int, *, compiles: bool) -> Memory:
        """The smallest memory for so many tokens."""
        size = self._smallest
        while size < tokens:
            size *= 2
        key = (size, traits.implementation, traits.packs, model.dtype, str(model.device), compiles)
        if key not in self._known:
            self._known[key] = Memory(model, traits, size, compiles=compiles, backend=self._backend)
        return self._known[key]
