"""The OpenVINO engine: one graph, one paged KV cache, and forward passes over several sequences."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING
from weakref import WeakSet

from antiphon.accel.drafting.budget import AcceptanceStats, initial_stats, make_budget
from antiphon.accel.drafting.draft import EMPTY, Draft, Logits, Tokens
from antiphon.accel.engines.fair_lock import FairLock
from antiphon.accel.engines.openvino.block_pool import (
    MAX_STATES,
    MIN_STATES,
    BlockPool,
    OutOfBlocksError,
    StatePool,
)
from antiphon.accel.engines.openvino.graph import PagedGraph, SequenceRows
from antiphon.accel.engines.openvino.paged_inputs import BLOCK_SIZE
from antiphon.accel.engines.openvino.paged_memory import BlockStorage, PagedMemory, block_bytes, state_bytes
from antiphon.accel.engines.openvino.sequence import PagedSequence
from antiphon.accel.engines.protocol import AnonymousTenant, Level, SequenceInput, SequenceOptions, ThreadSettings

if TYPE_CHECKING:
    from torch import Tensor

    from antiphon.accel.drafting.budget import Budget
    from antiphon.accel.drafting.cost_model import CostModel, StepCost
    from antiphon.accel.drafting.draft import Drafter
    from antiphon.accel.drafting.drafters.head import DraftHead
    from antiphon.accel.drafting.drafters.recycling_table import Bigrams
    from antiphon.accel.engines.protocol import CachedSequence

PREFILL_CHUNK = 1024
"""Maximum number of prompt tokens per forward pass. SmolLM2 prefills 900 tokens 7 % faster in one
pass than in two, and 13 % faster than in four."""

PREFILL_BATCH_TOKENS = 4608
"""Maximum number of prompt tokens in a shared prefill; a request does not wait for more tokens.
Eight prompts of 560 tokens take a fifth less time together than separately."""

MAX_PENDING_WITH_TREE = 32
"""Maximum number of pending tokens in a forward pass with a draft tree, because the mask's size is
quadratic in this number. Earlier pending tokens are prefilled in separate passes."""

MIN_BIGRAM_WINDOW = 256
"""Bigrams are computed only if all windows are larger, because their draft trees must fit."""

PREALLOCATED_TOKENS, PREALLOCATED_BYTES = 4096, 256 << 20
"""Maximum numbers of tokens and bytes of the KV cache that are written in advance.

The system provides memory at the first write. On a virtual machine this takes up to 3 ms per page
of 2 MiB, and each layer has its own pages. This made SmolLM2's prefill 25 ms longer.
"""

STATE_ONLY_BLOCK_BYTES = 2**16
"""Assumed bytes of a block of tokens in a model without attention. Its blocks have no contents."""

FindBigrams = Callable[["Callable[[Draft, int], Tensor]"], "Bigrams | None"]
"""Computes a model's bigrams. Its argument is a function that returns the logits of a root token and a draft."""

MeasureCost = Callable[["OpenVINOEngine", bool], "StepCost"]
"""Returns the cost of an engine's forward passes; True as the second argument forces a new measurement."""


class OpenVINOEngine:
    """Runs one model as a graph over a paged KV cache, which all of its sequences share.

    Implements `antiphon.accel.engines.protocol.ModelEngine`. If the KV cache is full, unused cached prefixes are
    evicted first, then the least recently used sequences, which the scheduler prefills again.

    Args:
        memory: Size of the KV cache in bytes; at least two blocks.
        window: Smallest sliding window of the model's layers, in tokens; None without windows.
        max_positions: Length of the model's context, in tokens; None if unlimited.
        max_length: See `ModelEngine.max_length`: the graph has the rotary frequencies of texts up to this length.
        num_states: Number of blocks for recurrent states, at least `MIN_STATES`; 0 without states.
            None: as many as fit into three quarters of ``memory``, at most `MAX_STATES`.
        prefill_chunk: Maximum number of prompt tokens per forward pass.
        lock: Lock held during forward passes; it can be shared with another engine of the same model.
        find_bigrams: Function that computes the model's bigrams; None if there are none.

    Raises:
        ValueError: ``memory`` is too small for two blocks and the states.
    """

    name = "openvino"
    level: Level = "tree"
    prefill_batch_tokens = PREFILL_BATCH_TOKENS

    def __init__(
        self,
        graph: PagedGraph,
        *,
        memory: int,
        window: int | None = None,
        max_positions: int | None = None,
        max_length: int | None = None,
        num_states: int | None = None,
        prefill_chunk: int = PREFILL_CHUNK,
        lock: FairLock | None = None,
        find_bigrams: FindBigrams | None = None,
    ) -> None:
        self._block_bytes = size = block_bytes(graph.cache_shapes, graph.precision) or STATE_ONLY_BLOCK_BYTES
        state_size = state_bytes(graph.state_shapes)
        if not state_size:
            num_states = 0
        elif num_states is None:
            num_states = min(max(3 * memory // 4 // state_size, MIN_STATES), MAX_STATES)
        num_blocks = (memory - num_states * state_size) // size
        if num_blocks < 2:
            more = f" and {MIN_STATES} states of {state_size} bytes each" if state_size else ""
            raise ValueError(
                f"memory is {memory} bytes, but a block of {BLOCK_SIZE} tokens takes {size} bytes in this model; give "
                f"at least two blocks{more}, {2 * size + MIN_STATES * state_size} bytes."
            )
        self.graph = graph
        self.prefill_chunk = prefill_chunk
        self.window = window
        self.max_length = max_length
        self.max_positions = max_positions = max_length or max_positions
        self.acceptance_stats: AcceptanceStats | None = None
        self.lock = FairLock() if lock is None else lock
        self.scheduler: object | None = None
        self.pool = BlockPool(num_blocks)
        storage = BlockStorage(graph.cache_shapes, num_blocks, graph.precision, graph.state_shapes, num_states)
        states = StatePool(num_states) if num_states else None
        self._memory = PagedMemory(self.pool, storage, states, window, max_positions)
        graph.attach(storage)
        self._sequences: WeakSet[PagedSequence] = WeakSet()
        self._num_forwards = 0
        self._measure_cost: MeasureCost | None = None
        self._cost: StepCost | None = None
        self._find_bigrams = find_bigrams
        self._bigrams: Bigrams | None = None
        if graph.has_temporary_weights:
            self._release_temporary_weights()

    @property
    def batch_cost(self) -> CostModel | None:
        """See `Engine.batch_cost`."""
        return None if self.acceptance_stats is None else self.acceptance_stats.batch_cost

    def set_cost_measurement(self, measure: MeasureCost) -> None:
        """Set the function that measures the cost of forward passes, and call it."""
        self._measure_cost = measure
        self.step_cost()

    def step_cost(self, *, remeasure: bool = False) -> StepCost:
        """See `ModelEngine.step_cost`.

        Raises:
            ValueError: `set_cost_measurement` was not called.
        """
        if self._measure_cost is None:
            raise ValueError("The cost of this engine's forward passes is unknown; call `set_cost_measurement` first.")
        if remeasure or self._cost is None:
            self._cost = self._measure_cost(self, remeasure)
            self.acceptance_stats = initial_stats(self._cost)
        return self._cost

    def budget(self, drafter: Drafter, num_draft_tokens: int | None, cost: StepCost | None = None) -> Budget:
        """See `ModelEngine.budget`."""
        return make_budget(drafter, num_draft_tokens, cost, lambda: self.acceptance_stats)

    @property
    def bigrams(self) -> Bigrams | None:
        """See `ModelEngine.bigrams`."""
        can_find = self._memory.states is None and (self.window is None or self.window > MIN_BIGRAM_WINDOW)
        if self._find_bigrams is not None and can_find:
            self._bigrams = self._find_bigrams(self._forward_new_sequence)
            self.graph.release_exact_head()
        self._find_bigrams = None
        return self._bigrams

    def release(self, sequence: CachedSequence) -> None:
        """See `ModelEngine.release`. Later requests of the tenant can reuse the prefix until its blocks are evicted."""
        sequence.reset()

    @property
    def capacity(self) -> int:
        """Number of tokens that fit into the KV cache, for all sequences together."""
        return self.pool.num_blocks * BLOCK_SIZE

    def preallocate(self, tokens: int | None = None) -> None:
        """Write to the blocks that will be used first, so that the system provides their memory in advance.

        Args:
            tokens: Number of tokens whose blocks are written; None: as many as fit `PREALLOCATED_BYTES`.
        """
        most = PREALLOCATED_BYTES // self._block_bytes
        count = min(PREALLOCATED_TOKENS // BLOCK_SIZE, most) if tokens is None else -(-tokens // BLOCK_SIZE)
        for block in range(min(count, self.pool.num_blocks)):
            with self._memory.lock:
                if self.pool.is_free(block):
                    self._memory.storage.clear(block)

    def sequence(
        self, text: Tokens = (), *, tenant: Hashable = None, hidden_states: tuple[int, ...] = ()
    ) -> PagedSequence:
        """Return a new sequence, which starts with the tenant's longest cached prefix of the text.

        Args:
            text: Token ids of the prompt.
            tenant: Owner of the text. If it is an object, its cached prefixes are dropped when it
                is garbage-collected. If it is a name or a number, they stay.
            hidden_states: Indices of the hidden states that a draft head reads; ignored if the
                graph does not return them.
        """
        sequence = PagedSequence(self._memory, tenant, hidden_states if self._gives(hidden_states) else ())
        with self._memory.lock:
            self._memory.collect()
            sequence.adopt_prefix(text)
        self._sequences.add(sequence)
        return sequence

    def new_sequence(self, tokens: Tokens, options: SequenceOptions) -> PagedSequence:
        """See `ModelEngine.new_sequence`."""
        return self.sequence(tokens, tenant=options.tenant, hidden_states=options.hidden_states)

    def missing_for_head(self, head: DraftHead) -> str:
        """See `ModelEngine.missing_for_head`. No head can read keys: only OpenVINO's kernels know their format."""
        if head.reads_cache:
            return "the model's keys and values, which OpenVINO keeps in an internal format"
        return "" if self._gives(head.layers) else f"the hidden states {head.layers}"

    def _gives(self, layers: tuple[int, ...]) -> bool:
        """Return whether the graph returns these hidden states. It can only return the last layer's hidden states."""
        return self.graph.hidden_size > 0 and layers == (-1,)

    def cache_of(self, sequence: CachedSequence) -> None:
        """Return None, because the KV cache is not a transformers cache."""

    def usable_bita(self, *, reproducible: bool = False) -> tuple[None, str]:
        """Return None and the reason: the graph has no embeddings for BiTA's masks."""
        return None, f"BiTA's masks are not verified by the engine {self.name}"

    def uninitialized_sequence(self, length: int) -> PagedSequence:
        """Return a sequence with ``length`` uninitialized cached tokens, to time a forward pass."""
        sequence = self.sequence(tenant=AnonymousTenant())
        sequence.fill_uninitialized(length)
        return sequence

    def thread_settings(self) -> ThreadSettings:
        """Return the defaults, because OpenVINO has its own threads and precision."""
        return ThreadSettings()

    def thread_context(self, settings: ThreadSettings) -> AbstractContextManager[None]:
        """Return a context that changes nothing."""
        return nullcontext()

    def forward(self, inputs: Sequence[SequenceInput], /) -> list[Logits]:
        """See `Engine.forward`. Long prompts are first prefilled in chunks, several sequences in one pass.

        Raises:
            OutOfBlocksError: The sequences together do not fit into the KV cache.
        """
        self._num_forwards += 1
        sequences = [_own_sequence(each) for each in inputs]
        pending = [list(each.pending) for each in inputs]
        # 1. Prefill in chunks, except for the last tokens, which are computed with the draft or need logits.
        while any(chunks := [self._next_chunk(each, left) for each, left in zip(inputs, pending, strict=True)]):
            self._prefill(sequences, [left[:count] for left, count in zip(pending, chunks, strict=True)])
            pending = [left[count:] for left, count in zip(pending, chunks, strict=True)]
        # 2. Allocate blocks and compute the remaining pending tokens and the draft rows.
        with self._memory.lock:
            self._reserve(sequences, [(len(left), each.draft) for each, left in zip(inputs, pending, strict=True)])
            rows = [s.begin_forward(left, i.draft) for s, i, left in zip(sequences, inputs, pending, strict=True)]
        return self._run(sequences, rows, needs_best=any(each.needs_best for each in inputs))

    def _forward_new_sequence(self, draft: Draft, root: int) -> Tensor:
        """Return the logits of a draft below a root token, without any context: (1 + rows, vocab)."""
        sequence = self.sequence(tenant=AnonymousTenant())
        logits = self.forward([SequenceInput(sequence, (root,), draft)])[0].tensor()
        sequence.reset()
        return logits

    def _release_temporary_weights(self) -> None:
        """Run a forward pass, in which OpenVINO packs the weights; then free the original weights."""
        sequence = self.uninitialized_sequence(1)
        self.forward([SequenceInput(sequence, (0,))])
        sequence.reset()
        self.graph.release_temporary_weights()

    def _next_chunk(self, given: SequenceInput, pending: Sequence[int]) -> int:
        """Return how many pending tokens to prefill next; 0 if the final pass can compute all of them."""
        chunk = min(given.prefill_chunk or self.prefill_chunk, self.prefill_chunk)
        has_draft = len(given.draft) > 0
        limit = min(chunk, MAX_PENDING_WITH_TREE) if has_draft else chunk
        return min(chunk, len(pending) - (1 if has_draft else limit)) if len(pending) > limit else 0

    def _prefill(self, sequences: Sequence[PagedSequence], chunks: Sequence[Tokens]) -> None:
        """Compute and keep the next chunk of each prompt that is not finished."""
        prefilled = [(sequence, chunk) for sequence, chunk in zip(sequences, chunks, strict=True) if chunk]
        with self._memory.lock:
            self._reserve(sequences, [(len(chunk), EMPTY) for chunk in chunks])
            rows = [sequence.begin_forward(chunk, EMPTY, needs_logits=False) for sequence, chunk in prefilled]
        self._run([sequence for sequence, _ in prefilled], rows)
        for sequence, _ in prefilled:
            sequence.keep(())

    def _run(
        self, sequences: Sequence[PagedSequence], rows: Sequence[SequenceRows], *, needs_best: bool = False
    ) -> list[Logits]:
        """Run the graph, and note the hidden states for the sequences that collect them."""
        logits = self.graph.run(rows, needs_best=needs_best)
        for sequence, own in zip(sequences, self.graph.hidden_states, strict=True):
            if sequence.hidden_states.layers:
                sequence.hidden_states.note([own])
        return logits

    def _reserve(self, sequences: Sequence[PagedSequence], rows: Sequence[tuple[int, Draft]]) -> None:
        """Allocate blocks for new rows of each sequence; evict sequences outside this forward pass if necessary.

        Args:
            rows: For each sequence, its number of pending tokens and its draft.
        """
        self._memory.collect()
        for sequence in sequences:
            sequence.last_used = self._num_forwards
        counts = [pending + len(draft) for pending, draft in rows]
        missing = sum(sequence.missing_blocks(count) for sequence, count in zip(sequences, counts, strict=True))
        states = sum(sequence.num_new_states(count) for sequence, count in zip(sequences, counts, strict=True))
        others = sorted((each for each in self._sequences if each not in sequences), key=lambda each: each.last_used)
        for other in others:
            if missing <= self.pool.num_available and states <= self._memory.num_states_available:
                break
            other.evict()
        if states > self._memory.num_states_available:
            raise OutOfBlocksError(
                f"A forward pass over {len(sequences)} requests needs {states} recurrent states, and "
                f"{self._memory.num_states_available} are available; give the engine more memory (memory=...), or "
                "decode fewer requests at once."
            )
        if missing > self.pool.num_available:
            tokens = sum(len(sequence.tokens) + count for sequence, count in zip(sequences, counts, strict=True))
            raise OutOfBlocksError(
                f"A forward pass over {len(sequences)} requests needs {tokens} tokens of KV cache, and the engine's "
                f"memory holds {self.capacity}; give it more (memory=...), decode fewer requests at once, or shorten "
                "them."
            )
        for sequence, count in zip(sequences, counts, strict=True):
            sequence.reserve(count)


def _own_sequence(given: SequenceInput) -> PagedSequence:
    if not isinstance(given.sequence, PagedSequence):
        raise TypeError(
            f"sequence is a {type(given.sequence).__name__}; this engine needs sequences that it created itself."
        )
    return given.sequence
