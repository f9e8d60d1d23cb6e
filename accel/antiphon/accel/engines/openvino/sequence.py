"""One sequence of the OpenVINO engine: block table, verifiable drafts and kept rows."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING
from weakref import finalize, ref

import numpy as np

from antiphon.accel.drafting.draft import EMPTY, Draft, Tokens, most_likely_chain, trim, without_probes
from antiphon.accel.drafting.tree import Tree, build_tree
from antiphon.accel.engines.openvino.block_pool import EMPTY_STATE
from antiphon.accel.engines.openvino.graph import SequenceRows
from antiphon.accel.engines.openvino.paged_inputs import BLOCK_SIZE
from antiphon.accel.engines.openvino.paged_memory import PagedMemory
from antiphon.accel.engines.openvino.row_states import CHUNK, SequenceStates
from antiphon.accel.engines.protocol import KeptStates

if TYPE_CHECKING:
    from antiphon.accel.engines.protocol import Level


class PagedSequence:
    """The KV cache of one sequence, in blocks that it may share with others. Created by `OpenVINOEngine.sequence`.

    Implements `antiphon.accel.engines.protocol.CachedSequence`.

    Attributes:
        tenant: Owner of the text; cached prefixes are shared within one tenant only.
        can_batch: Whether the sequence may share forward passes with others.
        blocks: Block table: numbers of the blocks that hold the tokens, in their order.
        states: Blocks of recurrent states. The first one holds the state after the cached tokens.
            Between a forward pass and `keep`, the blocks follow that `keep` writes to. Empty if no
            token is cached, or if the model has no state.
        hidden_states: Hidden states of kept rows.
        last_used: Number of the last forward pass that the sequence took part in.
    """

    def __init__(self, memory: PagedMemory, tenant: Hashable = None, hidden_states: tuple[int, ...] = ()) -> None:
        self.tenant = tenant
        self.hidden_states = KeptStates(hidden_states)
        self.can_batch = True
        self.tokens: list[int] = []
        self.blocks: list[int] = []
        self.states: list[int] = []
        self.last_used = 0
        self._memory = memory
        self._cache_key = _weak(tenant, memory.ended_tenants)
        self._num_cached = 0  # index of the first block that may still be added to the prefix cache
        self._row_states: SequenceStates | None = None  # of the last forward pass
        self._cached_state = 0  # length of the text after which a state was last cached while decoding
        self._is_evicted = False
        self._is_prefilled = False
        self._input: tuple[Tokens, Draft] = ((), EMPTY)  # pending tokens and draft between a forward pass and `keep`
        finalize(self, memory.abandoned_blocks.append, self.blocks)
        finalize(self, memory.abandoned_states.append, self.states)

    @property
    def length(self) -> int:
        """Number of cached tokens; between a forward pass and `keep` it includes all rows of the forward pass."""
        pending, draft = self._input
        return len(self.tokens) + len(pending) + len(draft)

    @property
    def level(self) -> Level:
        """See `CachedSequence.level`. Trees fit only while a text is shorter than every window.

        The graph counts windows in cache slots. Slots equal text positions only for chains.
        """
        window = self._memory.window
        return "tree" if window is None or len(self.tokens) + 1 < window else "linear"

    @property
    def is_prefilled(self) -> bool:
        """See `CachedSequence.is_prefilled`."""
        return self._is_prefilled

    def can_draft_at_prefill(self, context: Tokens) -> bool:
        """See `CachedSequence.can_draft_at_prefill`."""
        window = self._memory.window
        return len(context) > len(self.tokens) + 1 and (window is None or len(context) < window)

    def fit(self, draft: Draft, rows: int, depth: int, pending: int = 1) -> Draft:
        """See `CachedSequence.fit`. Returns a tree if it fits into every sliding window, else a chain.

        Mask tokens of BiTA (negative token ids) are removed, because the graph has no embeddings for them.
        """
        if draft.num_probes and min(draft.tokens) < 0:
            draft = without_probes(draft)
        root = len(self.tokens) + pending - 1
        positions = self._memory.max_positions
        depth = min(depth, sys.maxsize if positions is None else max(positions - 1 - root, 0))
        fitted = trim(draft, rows, depth)
        window = self._memory.window
        if window is not None and root + 1 + len(fitted) > window:
            return trim(most_likely_chain(draft), rows, depth)
        return fitted

    def keep(self, path: Sequence[int]) -> None:
        """See `CachedSequence.keep`. Accepted rows are moved to the slots right after the pending tokens."""
        with self._memory.lock:
            (pending, draft), self._input = self._input, ((), EMPTY)
            if self._is_evicted:
                return  # the sequence was evicted during the forward pass
            self._is_prefilled = True
            rows = [*range(len(pending)), *(len(pending) + row for row in path)]
            self.hidden_states.keep(len(self.tokens), rows)
            start = len(self.tokens) + len(pending)
            moved = [(start + row, start + place) for place, row in enumerate(path) if row != place]
            if moved:
                sources, targets = zip(*((self._slot(a), self._slot(b)) for a, b in moved), strict=True)
                self._memory.storage.move_rows(sources, targets)
            self._confirm([*pending, *(draft.tokens[row] for row in path)])
            self._keep_state(rows, is_decoding=len(draft) > 0 or len(rows) == 1)

    def discard(self) -> None:
        """See `CachedSequence.discard`."""
        self._input = ((), EMPTY)
        with self._memory.lock:
            self._drop_states()

    def reset(self) -> None:
        """See `CachedSequence.reset`."""
        self._clear(is_evicted=False)

    def is_evicted(self, context: Tokens) -> bool:
        """Return whether the engine gave the sequence's blocks to another sequence."""
        return self._is_evicted

    def evict(self) -> None:
        """Free all blocks because another sequence needs them. The scheduler then resets this sequence."""
        self._clear(is_evicted=True)

    def adopt_prefix(self, text: Tokens) -> None:
        """Start with the longest cached prefix of the text. The last token of the text is never included."""
        with self._memory.lock:
            blocks, count = self._memory.pool.find_prefix(self._cache_key, text[:-1])
            if (states := self._memory.states) is not None:
                state, count = states.find(self._cache_key, text[:count])
                del blocks[count // BLOCK_SIZE :]
                states.share(state)
                self.states[:] = [state]
            self._memory.pool.share(blocks)
        self.blocks[:] = blocks
        self.tokens[:] = text[:count]
        self._num_cached = count // BLOCK_SIZE

    def fill_uninitialized(self, length: int) -> None:
        """Allocate uninitialized blocks for ``length`` tokens, to time a forward pass after them.

        Raises:
            OutOfBlocksError: Too few blocks are available.
        """
        self.reserve(length)
        self.tokens[:] = [0] * length
        self._num_cached = length // BLOCK_SIZE  # so that these blocks are never added to the prefix cache

    def missing_blocks(self, rows: int) -> int:
        """Return how many blocks must be allocated for ``rows`` more rows."""
        missing = _num_blocks(len(self.tokens) + rows) - len(self.blocks)
        return max(missing, 0) + self._writes_to_shared(rows)

    def reserve(self, rows: int) -> None:
        """Allocate the blocks for ``rows`` more rows. If a shared or cached block would be written to, it is copied.

        Raises:
            OutOfBlocksError: Too few blocks are available.
        """
        pool = self._memory.pool
        allocated = pool.allocate(self.missing_blocks(rows))
        if self._writes_to_shared(rows):
            place = len(self.tokens) // BLOCK_SIZE
            shared, self.blocks[place] = self.blocks[place], allocated.pop()
            self._memory.storage.copy_block(shared, self.blocks[place], len(self.tokens) % BLOCK_SIZE)
            pool.free([shared])
        self.blocks += allocated

    def begin_forward(self, pending: Tokens, draft: Draft = EMPTY, *, needs_logits: bool = True) -> SequenceRows:
        """Return the rows of the next forward pass, and remember them for `keep`.

        Args:
            pending: Confirmed tokens that are not cached yet.
            needs_logits: Whether the pass returns logits: after the root and each draft row.
        """
        self._input, self._is_evicted = (pending, draft), False
        rows = len(pending) + len(draft)
        tree = None if _is_chain(draft) else build_tree(len(pending), draft.parents)
        past = len(self.tokens)
        self._row_states = self._begin_states(rows, draft, tree)
        return SequenceRows(
            tokens=[*pending, *draft.tokens],
            positions=past + (np.arange(rows) if tree is None else tree.depths),
            past=past,
            blocks=self.blocks[: _num_blocks(past + rows)],
            num_logits=1 + len(draft) if needs_logits else 0,
            tree_mask=None if tree is None else tree.ancestor_mask.astype(np.uint8).reshape(-1),
            states=self._row_states,
        )

    def num_new_states(self, rows: int) -> int:
        """Return how many blocks the states after the next forward pass need.

        One is for the state after the last kept row. If a block of tokens may be filled before this
        row, another one is for the state after the full block, which is cached.
        """
        past = len(self.tokens)
        return 0 if self._memory.states is None else 1 + (_last_boundary(past + rows - 1) > past)

    def _begin_states(self, rows: int, draft: Draft, tree: Tree | None) -> SequenceStates | None:
        """Allocate blocks for the states that `keep` writes, and return the states of the next forward pass."""
        pool = self._memory.states
        if pool is None:
            return None
        if not self.states:
            pool.share(EMPTY_STATE)
            self.states.append(EMPTY_STATE)
        self._drop_states()
        self.states += pool.allocate(self.num_new_states(rows))
        before, past = self._memory.storage.layer_states(self.states[0]), len(self.tokens)
        if rows <= CHUNK or draft:
            return SequenceStates(before, rows, mask=None if tree is None else tree.ancestor_mask)
        last = _last_boundary(past + rows) - past  # so that the state after the last full block can be written
        return SequenceStates(before, rows, last=last if last < rows else rows - CHUNK)

    def _keep_state(self, rows: Sequence[int], *, is_decoding: bool) -> None:
        """Write the state after the last kept row. If rows fill a block, cache the state after it.

        While decoding, the newly cached state replaces the state that was cached before.
        """
        pool, states = self._memory.states, self._row_states
        if pool is None or states is None or not rows:
            return
        _, kept, *others = self.states
        states.write(rows[-1], self._memory.storage.layer_states(kept))
        boundary = _last_boundary(len(self.tokens))
        index = boundary - 1 - (len(self.tokens) - len(rows))
        if index >= 0:
            full = kept
            if index < len(rows) - 1:
                full = others[0]
                states.write(rows[index], self._memory.storage.layer_states(full))
            pool.cache(self._cache_key, self.tokens[:boundary], full)
            if self._cached_state:
                pool.uncache(self._cache_key, self.tokens[: self._cached_state])
            self._cached_state = boundary if is_decoding else 0
        pool.share(kept)
        pool.free(self.states)
        self.states[:], self._row_states = [kept], None

    def _drop_states(self) -> None:
        """Free the blocks of states that were not kept, and forget the states of the rows."""
        self._row_states = None
        if self._memory.states is not None:
            self._memory.states.free(self.states[1:])
            del self.states[1:]

    def _confirm(self, tokens: Tokens) -> None:
        """Append confirmed tokens, free the blocks after them, and add full blocks to the prefix cache."""
        self.tokens += tokens
        surplus = self.blocks[_num_blocks(len(self.tokens)) :]
        del self.blocks[len(self.blocks) - len(surplus) :]
        self._memory.pool.free(surplus)
        full = len(self.tokens) // BLOCK_SIZE
        if full > self._num_cached:
            self._memory.pool.cache_prefix(self._cache_key, self.tokens, self.blocks, self._num_cached)
            self._num_cached = full

    def _clear(self, *, is_evicted: bool) -> None:
        with self._memory.lock:
            self._memory.pool.free(self.blocks)
            if self._memory.states is not None:
                self._memory.states.free(self.states)
            self._row_states = None
            self.states.clear()
            self.blocks.clear()
            self.tokens.clear()
            self._input, self._num_cached, self._cached_state = ((), EMPTY), 0, 0
            self._is_evicted, self._is_prefilled = is_evicted, False

    def _writes_to_shared(self, rows: int) -> bool:
        """Return whether the next row would be written to a block that is shared or cached."""
        place = len(self.tokens) // BLOCK_SIZE
        return rows > 0 and place < len(self.blocks) and not self._memory.pool.is_writable(self.blocks[place])

    def _slot(self, position: int) -> tuple[int, int]:
        """Return the block and the offset of a cached row."""
        return self.blocks[position // BLOCK_SIZE], position % BLOCK_SIZE


def _weak(tenant: Hashable, ended: deque[Hashable]) -> Hashable:
    """Return a weak reference that is added to ``ended`` when the tenant is garbage-collected.

    Objects without weak references, such as names and numbers, are returned unchanged.
    """
    try:
        return ref(tenant, ended.append)
    except TypeError:
        return tenant


def _num_blocks(num_tokens: int) -> int:
    """Return how many blocks hold ``num_tokens`` tokens."""
    return -(-num_tokens // BLOCK_SIZE)


def _last_boundary(num_tokens: int) -> int:
    """Return the number of a text's tokens that are in full blocks."""
    return num_tokens // BLOCK_SIZE * BLOCK_SIZE


def _is_chain(draft: Draft) -> bool:
    return draft.parents == tuple(range(-1, len(draft) - 1))
