"""A sequence with compiled steps. Their shapes are fixed, so that a GPU can replay CUDA graphs.

Accepted rows stay in the slots that they were written to: the mask determines the slots to which a
row attends, and positions come from the draft tree.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import Cache, PreTrainedModel

from antiphon.accel.drafting.cost_model import StepCost
from antiphon.accel.drafting.draft import Draft, Tokens, chain
from antiphon.accel.drafting.tree import AttentionSpan, build_tree
from antiphon.accel.engines.protocol import KeptStates, Level
from antiphon.accel.engines.torch.growing_cache import GrowingLayer
from antiphon.accel.engines.torch.self_test import FAILURES as TESTED
from antiphon.accel.engines.torch.sequence import TorchSequence
from antiphon.accel.engines.torch.slot_cache import (
    ANCESTORS,
    BACKEND,
    BUCKETS,
    MAX_LOGIT_ERROR,
    MIN_SLOTS,
    POSITIONS,
    SLOTS,
    TOKENS,
    SlotCache,
    SlotCachePool,
    StepOutputs,
)
from antiphon.accel.engines.torch.traits import Traits

MAX_HEADROOM = 1024
"""A slot cache is chosen with space for at most this many new tokens, even if the request may generate more."""

TRIALS = 4
"""Number of steps to time; the fastest one counts, because the first one includes compilation."""

FAILURES = (*TESTED, OSError, ImportError, AssertionError)


class CompiledSteps:
    """The compiled steps of one model: slot caches, and the reason if compilation has failed.

    Args:
        max_headroom: Maximum number of new tokens for which a slot cache is chosen.
    """

    def __init__(self, *, max_headroom: int = MAX_HEADROOM, min_slots: int = MIN_SLOTS, backend: Any = BACKEND) -> None:
        self.caches = SlotCachePool(min_slots=min_slots, backend=backend)
        self.failure = ""
        self.max_headroom = max_headroom


class CompiledSequence:
    """A sequence with the methods of `TorchSequence`. Steps after the prefill are compiled.

    ``plain`` prefills the prompt. It also decodes after a failed compilation (one warning per
    model), and while another sequence uses the slot cache between its ``forward`` and its `keep`.
    Between two steps, another sequence may take the slot cache. This sequence then copies its
    tokens to the cache of ``plain``. If no slots are free, this sequence moves to a larger slot
    cache.

    Args:
        compiles: True: compile with `torch.compile`; False: capture the model's own kernels as CUDA graphs.
    """

    can_batch = False

    def __init__(self, plain: TorchSequence, steps: CompiledSteps, *, compiles: bool) -> None:
        self.plain = plain
        self.steps = steps
        self.compiles = compiles
        self.argmax: Tensor | None = None
        self.is_mid_step = False
        self._headroom = 0
        self._slot_cache: SlotCache | None = None
        self._order: list[int] = []  # slot of each token, in the order of the tokens
        self._free: list[int] = []  # unused slots
        self._used = np.zeros(0, dtype=np.bool_)
        self._fed: tuple[int, list[int]] = (0, [])

    @property
    def model(self) -> PreTrainedModel:
        """The model."""
        return self.plain.model

    @property
    def hidden_states(self) -> KeptStates:
        """Hidden states of kept rows."""
        return self.plain.hidden_states

    @property
    def length(self) -> int:
        """Number of cached tokens."""
        return self.plain.length

    @property
    def level(self) -> Level:
        """See `CachedSequence`."""
        return self.plain.level

    @property
    def is_prefilled(self) -> bool:
        """See `CachedSequence`."""
        return self.plain.is_prefilled

    @property
    def cache(self) -> Cache:
        """All tokens as a transformers cache. Reading this property empties the slot cache."""
        self.leave_slot_cache()
        return self.plain.cache

    def can_draft_at_prefill(self, context: Tokens) -> bool:
        """See `CachedSequence`."""
        return self.plain.can_draft_at_prefill(context)

    def prefill(self, prompt: Tokens, chunk: int | None = None) -> Tensor:
        """See `TorchSequence.prefill`."""
        return self.plain.prefill(prompt, chunk)

    def inspect_cache(self) -> None:
        """See `TorchSequence.inspect_cache`."""
        self.plain.inspect_cache()

    def fit(self, draft: Draft, rows: int, depth: int, pending: int = 1) -> Draft:
        """See `CachedSequence.fit`; a compiled step has at most 64 rows, including pending tokens."""
        self._headroom = depth
        return self.plain.fit(draft, min(rows, BUCKETS[-1] - pending), depth, pending)

    def forward(self, pending: Tokens, draft: Draft) -> Tensor:
        """Run a forward pass over pending tokens and a draft, and set ``argmax``.

        Args:
            pending: Confirmed tokens that are not cached yet.

        Returns:
            Logits after the last pending token and after every draft row, of shape (1 + rows, vocab). The next step
            overwrites them and ``argmax``.
        """
        count = len(pending) + len(draft)
        bucket = next((size for size in BUCKETS if size >= count), 0)
        is_possible = bucket and self.plain.level == "tree" and self.length
        outputs = self._run(pending, draft, bucket) if is_possible else None
        if outputs is None:
            self.leave_slot_cache()
            self.argmax = None
            return self.plain.forward(pending, draft)
        rows = slice(len(pending) - 1, count)
        self.hidden_states.note(outputs[2])
        self.argmax = outputs[1][rows]
        return outputs[0][rows]

    def keep(self, path: Sequence[int]) -> None:
        """See `CachedSequence.keep`. Kept rows stay in their slots; the slots of all other rows become free."""
        if not self.is_mid_step:
            return self.plain.keep(path)
        pending, slots = self._fed
        rows = [*range(pending), *(pending + row for row in path)]
        self.hidden_states.keep(self.plain.length, rows)
        kept = [slots[row] for row in rows]
        self._order += kept
        self._used[kept] = True
        self._free += sorted(set(slots) - set(kept), reverse=True)
        self.plain.advance(len(kept))
        self.is_mid_step = False
        return None

    def discard(self) -> None:
        """See `CachedSequence.discard`."""
        if not self.is_mid_step:
            return self.plain.discard()
        self._free += sorted(self._fed[1], reverse=True)
        self.is_mid_step = False
        return None

    def is_evicted(self, context: Tokens) -> bool:
        """See `CachedSequence.is_evicted`.

        Always False, because models whose rotary frequencies switch are not compiled.
        """
        return self.plain.is_evicted(context)

    def reset(self) -> None:
        """See `CachedSequence.reset`."""
        self._order, self.is_mid_step = [], False
        self.leave_slot_cache()
        self.plain.reset()

    def leave_slot_cache(self) -> None:
        """Move the tokens from the slot cache to the plain cache, if they are in the slot cache."""
        if self._slot_cache is not None:
            self._slot_cache.release(self)

    def leave(self) -> None:
        """Copy all tokens to the plain cache, before another sequence gets the slot cache."""
        self.is_mid_step = False
        if self._slot_cache is not None and self._order:
            self.plain.put_states(self._slot_cache.read(self._order))
        self._order = []

    def _run(self, pending: Tokens, draft: Draft, bucket: int) -> StepOutputs | None:
        """Run a compiled step and return its outputs; None if no compiled step is available."""
        model = self.plain.model
        if self.steps.failure:
            return None
        try:
            slot_cache = self._enter_slot_cache(bucket)
            if slot_cache is None:
                return None
            slots = [self._free.pop() for _ in range(bucket)]
            self._fed = (len(pending), slots)
            return slot_cache.run(model, self._plan(pending, draft, slots), self._used)
        except FAILURES as error:  # compilers raise errors of any kind; the request continues uncompiled
            verb = "compiling" if self.compiles else "capturing a CUDA graph"
            self.steps.failure = f"{verb} failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            warnings.warn(
                f"{type(model).__name__} is decoded without compiled steps: {self.steps.failure}", stacklevel=2
            )
            return None

    def _enter_slot_cache(self, bucket: int) -> SlotCache | None:
        """Return a slot cache with the tokens and ``bucket`` free slots; None if the slot cache is in use."""
        plain = self.plain
        if self._slot_cache is None or self._slot_cache.size < plain.length + bucket:
            self.leave_slot_cache()
            tokens = plain.length + min(self._headroom, self.steps.max_headroom) + BUCKETS[-1]
            self._slot_cache = self.steps.caches.get(
                plain.model, plain.traits, tokens, compiles=self.compiles, hidden_states=plain.hidden_states.layers
            )
        slot_cache = self._slot_cache
        if not slot_cache.acquire(self):
            return None
        if not self._order:
            length = slot_cache.load(plain.take_layers())
            self._order = list(range(length))
            self._free = list(range(slot_cache.size - 1, length - 1, -1))
            self._used = np.zeros(slot_cache.size, dtype=np.bool_)
            self._used[plain.padding : length] = True
        return slot_cache

    def _plan(self, pending: Tokens, draft: Draft, slots: list[int]) -> NDArray[np.int64]:
        """Return token, position, slot and ancestors (as bits) of each row, shape (4, rows)."""
        padding_rows = len(slots) - len(pending) - len(draft)
        tree = build_tree(len(pending), draft.parents, padding_rows)
        sees = np.zeros((len(slots), 64), dtype=np.bool_)
        sees[:, : len(slots)] = tree.ancestor_mask
        np.fill_diagonal(sees, True)  # a padding row that attends to nothing would be NaN
        plan = np.empty((4, len(slots)), dtype=np.int64)
        plan[TOKENS] = [*pending, *draft.tokens, *[pending[-1]] * padding_rows]
        plan[POSITIONS] = self.plain.positions(torch.from_numpy(tree.depths)).numpy()
        plan[SLOTS] = slots
        plan[ANCESTORS] = np.packbits(sees, axis=1, bitorder="little").view(np.int64)[:, 0]
        return plan


def why_not_compiled(model: PreTrainedModel, traits: Traits, cache: Cache) -> str | None:
    """Return why this model and cache cannot have compiled steps; None if they can.

    Args:
        cache: The cache of a sequence, before or after its prefill.
    """
    layers = sorted({type(layer).__name__ for layer in cache.layers if type(layer) is not GrowingLayer})
    reasons = {
        f"it verifies no trees ({traits.reason})": traits.level != "tree",
        "its rotary frequencies change with the length": traits.rope is not None,
        f"not all of its layers look back to the start ({', '.join(traits.attention_spans)})": any(
            span != AttentionSpan() for span in traits.attention_spans.values()
        ),
        f"its cache is a {type(cache).__name__} of other layers ({', '.join(layers) or 'none yet'})": bool(layers)
        or len(cache.layers) != len(traits.layer_kinds),
        "it lies on several devices": len({parameter.device for parameter in model.parameters()}) > 1,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def cost_by_bucket(cost: StepCost) -> StepCost:
    """Return the cost of all numbers of rows, given the costs of the `BUCKETS`.

    A step costs as much as a step of the next larger bucket, because the step is padded to that
    size. Above the last bucket, steps are not compiled; their cost is extrapolated from the last
    two buckets.
    """
    return replace(cost, seconds={context: _padded(measured) for context, measured in cost.seconds.items()})


def _padded(measured: Mapping[int, float]) -> dict[int, float]:
    padded: dict[int, float] = {}
    below, less = 0, 0.0
    for bucket, seconds in measured.items():
        padded |= {below + 1: seconds, bucket: seconds}
        rise = max(seconds - less, 0.0) / (bucket - below) if below else 0.0
        below, less = bucket, seconds
    return padded | {2 * below: less + below * rise}


@torch.no_grad()
def check_graphs(make: Callable[[], TorchSequence], steps: CompiledSteps) -> str:
    """Return why CUDA graphs are not used on this device; an empty string if they are used.

    They are used if a trial with a short prompt is faster than plain passes, and gives the same
    logits.
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
        for _ in range(TRIALS):
            started = perf_counter()
            rows = sequence.forward([17], draft)
            rows.argmax(-1).tolist()
            taken.append(perf_counter() - started)
            sequence.keep(())
        seconds.append(min(taken))
        logits.append(rows.float().clone())
    compiled.leave_slot_cache()
    error = float((logits[1] - logits[0]).abs().mean() / logits[0].std())
    if steps.failure or not error <= MAX_LOGIT_ERROR:
        return steps.failure or f"graphs gave other logits here ({error:.3f} standard deviations apart)"
    if seconds[1] >= seconds[0]:
        return f"graphs are not faster here: {1000 * seconds[1]:.1f} ms, and {1000 * seconds[0]:.1f} ms without"
    return ""
