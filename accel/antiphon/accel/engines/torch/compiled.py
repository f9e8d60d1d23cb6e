"""The memory of one text in compiled steps: fixed shapes, fixed slots, nothing launched or moved one by one.

A second `TorchSequence` with the same verbs. Accepted rows stay in the slots where they were written; rows see slots by
their mask, and have their positions from the tree, never from a slot. Knows no drafters.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import Cache, PreTrainedModel

from antiphon.accel.drafting.draft import Draft, Tokens, chain
from antiphon.accel.drafting.tree import AttentionSpan, plant
from antiphon.accel.engines.protocol import Level
from antiphon.accel.engines.torch.growing import GrowingLayer
from antiphon.accel.engines.torch.self_test import FAILURES as TESTED
from antiphon.accel.engines.torch.sequence import TorchSequence
from antiphon.accel.engines.torch.slots import (
    ANCESTORS,
    APART,
    BACKEND,
    BUCKETS,
    IDS,
    PLACES,
    POSITIONS,
    SMALLEST,
    Memories,
    Memory,
)
from antiphon.accel.engines.torch.traits import Traits

AHEAD = 1024
"""For how many further tokens a memory is chosen at least, where a text may go on for longer."""

TRIES = 4
"""The fastest of so many steps counts, of which the first one compiles."""

FAILURES = (*TESTED, OSError, ImportError, AssertionError)


class CompiledSteps:
    """The compiled steps of one model: the memories in which they run, and why there are none if they have failed.

    ``ahead`` is for how many further tokens a memory is chosen at least, ``smallest`` how many slots the smallest one
    has, and ``backend`` what `torch.compile` compiles with.
    """

    def __init__(self, *, ahead: int = AHEAD, smallest: int = SMALLEST, backend: Any = BACKEND) -> None:
        self.memories = Memories(smallest=smallest, backend=backend)
        self.failure = ""
        self.ahead = ahead


class CompiledSequence:
    """A `TorchSequence` whose steps after the prefill are compiled ones while they can be.

    The prompt is read by ``plain``, which also decodes on where compiled steps end: when compiling fails, which a
    warning says once for each model, and while another thread is in the midst of a step of its own. Between two steps
    the memory may be given to another text; this one then keeps its tokens in ``plain``'s cache, as it does in the
    end. When the slots are used up, the text moves to a memory of twice the size, with steps of its own.
    """

    is_shareable = False

    def __init__(self, plain: TorchSequence, steps: CompiledSteps, *, compiles: bool) -> None:
        self.plain = plain
        self.steps = steps
        self.compiles = compiles
        self.best: Tensor | None = None
        self.is_midway = False
        self._room = 0
        self._memory: Memory | None = None
        self._order: list[int] = []  # the slot of every token, in the order of the text
        self._free: list[int] = []
        self._seen = np.zeros(0, dtype=np.bool_)
        self._fed: tuple[int, list[int]] = (0, [])

    @property
    def model(self) -> PreTrainedModel:
        """The model of the text."""
        return self.plain.model

    @property
    def length(self) -> int:
        """How many tokens are held."""
        return self.plain.length

    @property
    def level(self) -> Level:
        """As of `TorchSequence`."""
        return self.plain.level

    @property
    def is_open(self) -> bool:
        """As of `TorchSequence`."""
        return self.plain.is_open

    @property
    def cache(self) -> Cache:
        """All tokens as a cache of transformers: the text leaves the memory for it."""
        self.leave_memory()
        return self.plain.cache

    def can_open(self, context: Tokens) -> bool:
        """As of `TorchSequence`."""
        return self.plain.can_open(context)

    def prefill(self, prompt: Tokens, chunk: int | None = None) -> Tensor:
        """As `TorchSequence` does."""
        return self.plain.prefill(prompt, chunk)

    def fit(self, draft: Draft, rows: int, depth: int, pending: int = 1) -> Draft:
        """What of a draft can be verified now; a compiled step has at most 63 rows beside the root."""
        self._room = depth
        return self.plain.fit(draft, min(rows, BUCKETS[-1] - pending), depth, pending)

    def forward(self, pending: Tokens, draft: Draft) -> Tensor:
        """Logits after the last pending token and after every draft row; ``best`` has the best token after each.

        Both lie where the next step will write.
        """
        count = len(pending) + len(draft)
        bucket = next((size for size in BUCKETS if size >= count), 0)
        outputs = self._run(pending, draft, bucket) if bucket and self.plain.level == "tree" else None
        if outputs is None:
            self.leave_memory()
            self.best = None
            return self.plain.forward(pending, draft)
        rows = slice(len(pending) - 1, count)
        self.best = outputs[1][rows]
        return outputs[0][rows]

    def keep(self, path: Sequence[int]) -> None:
        """Make the pending tokens and the rows of ``path`` permanent, where they lie; the other slots are free."""
        if not self.is_midway:
            return self.plain.keep(path)
        pending, places = self._fed
        kept = [*places[:pending], *(places[pending + row] for row in path)]
        self._order += kept
        self._seen[kept] = True
        self._free += sorted(set(places) - set(kept), reverse=True)
        self.plain.advance(len(kept))
        self.is_midway = False
        return None

    def is_void(self, context: Tokens) -> bool:
        """Never: a model whose rotary frequencies switch is not compiled."""
        return self.plain.is_void(context)

    def restart(self) -> None:
        """Forget everything."""
        self._order, self.is_midway = [], False
        self.leave_memory()
        self.plain.restart()

    def leave_memory(self) -> None:
        """Take the tokens out of the memory, if they are there."""
        if self._memory is not None:
            self._memory.vacate(self)

    def leave(self) -> None:
        """What the memory asks for when it is given to another text: every token goes back to the plain cache."""
        self.is_midway = False
        if self._memory is not None and self._order:
            self.plain.put_states(self._memory.read(self._order))
        self._order = []

    def _run(self, pending: Tokens, draft: Draft, bucket: int) -> tuple[Tensor, Tensor] | None:
        """The outputs of a compiled step, or None where there is none to be had."""
        model = self.plain.model
        if self.steps.failure:
            return None
        try:
            memory = self._enter(bucket)
            if memory is None:
                return None
            places = [self._free.pop() for _ in range(bucket)]
            self._fed = (len(pending), places)
            return memory.run(model, self._plan(pending, draft, places), self._seen)
        except FAILURES as error:  # compilers and drivers raise what they like; the text goes on without them
            self.steps.failure = f"compiling failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            warnings.warn(
                f"{type(model).__name__} is decoded without compiled steps: {self.steps.failure}", stacklevel=2
            )
            return None

    def _enter(self, bucket: int) -> Memory | None:
        """A memory that holds the text and has ``bucket`` free slots; None while another text is midway there."""
        plain = self.plain
        if self._memory is None or self._memory.size < plain.length + bucket:
            self.leave_memory()
            tokens = plain.length + min(self._room, self.steps.ahead) + BUCKETS[-1]
            memories = self.steps.memories
            self._memory = memories.for_tokens(plain.model, plain.traits, tokens, compiles=self.compiles)
        memory = self._memory
        if not memory.claim(self):
            return None
        if not self._order:
            length = memory.load(plain.take_layers())
            self._order = list(range(length))
            self._free = list(range(memory.size - 1, length - 1, -1))
            self._seen = np.zeros(memory.size, dtype=np.bool_)
            self._seen[plain.padding : length] = True
        return memory

    def _plan(self, pending: Tokens, draft: Draft, places: list[int]) -> NDArray[np.int64]:
        """What a step is told: each row's token, position and slot, and who its ancestors are; (4, rows)."""
        pads = len(places) - len(pending) - len(draft)
        tree = plant(len(pending), draft.parents, pads)
        sees = np.zeros((len(places), 64), dtype=np.bool_)
        sees[:, : len(places)] = tree.sees
        np.fill_diagonal(sees, True)  # rows that only fill the step see themselves: seeing nothing is no number
        plan = np.empty((4, len(places)), dtype=np.int64)
        plan[IDS] = [*pending, *draft.tokens, *[pending[-1]] * pads]
        plan[POSITIONS] = self.plain.positions(torch.from_numpy(tree.depths)).numpy()
        plan[PLACES] = places
        plan[ANCESTORS] = np.packbits(sees, axis=1, bitorder="little").view(np.int64)[:, 0]
        return plan


def why_not_compiled(model: PreTrainedModel, traits: Traits, cache: Cache) -> str | None:
    """Why there are no compiled steps for this model and this cache, or None where there can be."""
    layers = sorted({type(layer).__name__ for layer in cache.layers if type(layer) is not GrowingLayer})
    reasons = {
        f"it verifies no trees ({traits.reason})": traits.level != "tree",
        "its rotary frequencies change with the length": traits.rope is not None,
        f"not all of its layers look back to the start ({', '.join(traits.reaches)})": any(
            reach != AttentionSpan() for reach in traits.reaches.values()
        ),
        f"its cache is a {type(cache).__name__} of other layers ({', '.join(layers) or 'none yet'})": bool(layers)
        or len(cache.layers) != len(traits.kinds),
        "it lies on several devices": len({parameter.device for parameter in model.parameters()}) > 1,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


@torch.no_grad()
def try_graphs(make: Callable[[], TorchSequence], steps: CompiledSteps) -> str:
    """Why compiled steps are not taken by themselves on this device, tried on a short text; empty where they are.

    They are taken where they give the logits of plain forwards, and give them faster.
    """
    prompt, draft = list(range(1, 17)), chain(list(range(1, 8)))
    plain, compiled = make(), CompiledSequence(make(), steps, compiles=False)
    for sequence in (plain, compiled):
        sequence.prefill(prompt)
        sequence.keep(())
    seconds: list[float] = []
    logits: list[Tensor] = []
    for sequence in (plain, compiled):
        taken: list[float] = []
        for _ in range(TRIES):
            started = perf_counter()
            rows = sequence.forward([17], draft)
            rows.argmax(-1).tolist()
            taken.append(perf_counter() - started)
            sequence.keep(())
        seconds.append(min(taken))
        logits.append(rows.float().clone())
    compiled.leave_memory()
    apart = float((logits[1] - logits[0]).abs().mean() / logits[0].std())
    if steps.failure or not apart <= APART:
        return steps.failure or f"graphs gave other logits here ({apart:.3f} standard deviations apart)"
    if seconds[1] >= seconds[0]:
        return f"graphs are not faster here: {1000 * seconds[1]:.1f} ms for what takes {1000 * seconds[0]:.1f} without"
    return ""
