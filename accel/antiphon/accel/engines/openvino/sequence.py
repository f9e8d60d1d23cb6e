"""One sequence of the OpenVINO engine: block table, verifiable drafts and kept rows."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING
from weakref import finalize, ref

import numpy as np

from antiphon.accel.drafting.draft import EMPTY, Draft, Tokens, most_likely_chain, path_to, trim, without_probes
from antiphon.accel.drafting.tree import build_tree
from antiphon.accel.engines.openvino.block_pool import EMPTY_STATE
from antiphon.accel.engines.openvino.graph import SequenceRows, StatePath
from antiphon.accel.engines.openvino.paged_inputs import BLOCK_SIZE
from antiphon.accel.engines.openvino.paged_memory import PagedMemory
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
            Between a forward pass and `keep`, the states that the pass has written follow. Empty if
            no token is cached, or if the model has no state.
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
        self._state_of_row: dict[int, int] = {}  # blocks of the states that the last forward pass has written
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
        fitted = self._trim_to_states(draft, rows, depth)
        window = self._memory.window
        if window is not None and root + 1 + len(fitted) > window:
            return self._trim_to_states(most_likely_chain(draft), rows, depth)
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
            self._keep_state(rows, has_draft=len(draft) > 0)

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
        self._memory.stateful.add(self)
        return SequenceRows(
            tokens=[*pending, *draft.tokens],
            positions=past + (np.arange(rows) if tree is None else tree.depths),
            past=past,
            blocks=self.blocks[: _num_blocks(past + rows)],
            num_logits=1 + len(draft) if needs_logits else 0,
            tree_mask=None if tree is None else tree.ancestor_mask.astype(np.uint8).reshape(-1),
            paths=self._paths(len(pending), draft),
        )

    def num_new_states(self, pending: int, draft: Draft) -> int:
        """Return the maximum number of state blocks that the next forward pass writes.

        Args:
            pending: Number of pending tokens.
        """
        if self._memory.states is None:
            return 0
        return sum(pending + len(path) for path in _paths_to_leaves(draft)) if draft else 2

    def _trim_to_states(self, draft: Draft, rows: int, depth: int) -> Draft:
        """Trim a draft so that its states fit into the sequence's equal share of state blocks."""
        fitted, states = trim(draft, rows, depth), self._memory.states
        if states is None:
            return fitted
        sequences = len(self._memory.stateful) + (self not in self._memory.stateful)
        # Each sequence has one state already; one block is empty, and the prefill of another sequence needs three.
        available = (states.num_blocks - 4) // sequences - 1
        while len(fitted) and (missing := self.num_new_states(1, fitted) - available) > 0:
            fitted = trim(draft, max(len(fitted) - 1 - missing // 4, 0), depth)
        return fitted

    def _paths(self, pending: int, draft: Draft) -> Sequence[StatePath]:
        """Allocate blocks for the states of the next forward pass, and return its paths.

        With a draft, every row of every path gets a block, so a row above a branch gets several. A
        prefill writes the state after the last full block, which can be cached, and the state after
        the last token.
        """
        states = self._memory.states
        if states is None:
            return ()
        if not self.states:
            states.share(EMPTY_STATE)
            self.states.append(EMPTY_STATE)
        self._drop_states()
        past = len(self.tokens)
        if not draft:
            boundary = _last_boundary(past + pending)
            is_inside = past < boundary < past + pending
            self.states += states.allocate(1 + is_inside)
            self._state_of_row = {pending - 1: self.states[-1]}
            if is_inside:
                self._state_of_row[boundary - past - 1] = self.states[1]
            return [StatePath(range(pending), self.states[:], boundary if is_inside else past + pending)]
        paths: list[StatePath] = []
        self._state_of_row = {}
        for path in _paths_to_leaves(draft):
            rows = [*range(pending), *(pending + row for row in path)]
            blocks = states.allocate(len(rows))
            self.states += blocks
            self._state_of_row |= dict(zip(rows, blocks, strict=True))
            paths.append(StatePath(rows, [self.states[0], *blocks], 1))
        return paths

    def _keep_state(self, rows: Sequence[int], *, has_draft: bool) -> None:
        """Keep the state after the last kept row. If rows fill a block, cache the state after it.

        While decoding, the newly cached state replaces the state that was cached before.
        """
        states = self._memory.states
        if states is None or not rows:
            return
        boundary = _last_boundary(len(self.tokens))
        index = boundary - 1 - (len(self.tokens) - len(rows))
        if index >= 0:
            states.cache(self._cache_key, self.tokens[:boundary], self._state_of_row[rows[index]])
            if self._cached_state:
                states.uncache(self._cache_key, self.tokens[: self._cached_state])
            self._cached_state = boundary if has_draft or len(rows) == 1 else 0
        last = self._state_of_row[rows[-1]]
        states.share(last)
        states.free(self.states)
        self.states[:] = [last]

    def _drop_states(self) -> None:
        """Free the blocks of states that were not kept."""
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
            self._memory.stateful.discard(self)
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
    """Return how many tokens the full blocks of a text hold."""
    return num_tokens // BLOCK_SIZE * BLOCK_SIZE


def _paths_to_leaves(draft: Draft) -> list[list[int]]:
    """Return the path to each row that has no child, without the root."""
    return [path_to(draft, leaf) for leaf in range(len(draft)) if leaf not in draft.parents]


def _is_chain(draft: Draft) -> bool:
    return draft.parents == tuple(range(-1, len(draft) - 1))
