"""The memory of one text in blocks: what it holds, what of a draft it can verify, and which rows of it are kept.

Knows a pool of blocks and their memory; no model and no drafters.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import finalize, ref

import numpy as np

from antiphon.accel.drafting.draft import EMPTY, Draft, Tokens, most_likely_chain, trim, without_probes
from antiphon.accel.drafting.tree import build_tree
from antiphon.accel.engines.openvino.block_pool import BlockPool
from antiphon.accel.engines.openvino.graph import Share
from antiphon.accel.engines.openvino.paged_memory import BlockStorage
from antiphon.accel.engines.openvino.paged_attention import BLOCK

if TYPE_CHECKING:
    from collections import deque
    from threading import RLock

    from antiphon.accel.engines.protocol import Level


@dataclass(frozen=True, slots=True)
class PagedMemory:
    """Where texts live: the pool, the memory, how far the model's layers look, and where its positions end.

    Until somebody takes blocks, those of texts that nobody has any more wait in ``left``, and the tenants that nobody
    has any more in ``gone``. Rows are kept in threads of their own while others are fed: ``guard`` is held wherever
    blocks go from hand to hand. ``window`` is the smallest of the model's windows.
    """

    pool: BlockPool
    memory: BlockStorage
    left: deque[list[int]]
    guard: RLock
    gone: deque[Hashable]
    window: int | None = None
    positions: int | None = None


class PagedSequence:
    """One text's keys and values, in blocks that it may share with others. `OpenVINOEngine.sequence` makes it.

    What a ``tenant`` has read is shared with texts of that tenant alone.
    """

    def __init__(self, paged: PagedMemory, tenant: Hashable = None) -> None:
        self.tenant = tenant
        self.can_batch = True
        """Whether this text may be one of several in a forward."""
        self.tokens: list[int] = []
        """What is held and confirmed."""
        self.blocks: list[int] = []
        self.used = 0
        """When this text was last in a forward: a count of forwards."""
        self._paged = paged
        self._reader = _weak(tenant, paged.gone)
        self._known = 0
        self._is_void = False
        self._is_prefilled = False
        self._fed: tuple[Tokens, Draft] = ((), EMPTY)
        finalize(self, paged.left.append, self.blocks)

    @property
    def length(self) -> int:
        """How many tokens are held: the confirmed ones, and between a forward and `keep` all that were fed."""
        pending, draft = self._fed
        return len(self.tokens) + len(pending) + len(draft)

    @property
    def level(self) -> Level:
        """Trees; chains where the text has outgrown a window, which is counted in slots."""
        window = self._paged.window
        return "tree" if window is None or len(self.tokens) + 1 < window else "linear"

    @property
    def is_prefilled(self) -> bool:
        """Whether a forward has read of this text; what others have read of its beginning does not count."""
        return self._is_prefilled

    def can_draft_at_prefill(self, context: Tokens) -> bool:
        """Whether the last token of a prompt may be read with a draft beside it, after all the others."""
        window = self._paged.window
        return len(context) > len(self.tokens) + 1 and (window is None or len(context) < window)

    def fit(self, draft: Draft, rows: int, depth: int, pending: int = 1) -> Draft:
        """What of a draft can be verified now: a tree while it fits into every window, beyond that one chain.

        Rows that stand for no token, mask tokens of BiTA, are not verified here.
        """
        if draft.num_probes and min(draft.tokens) < 0:
            draft = without_probes(draft)
        root = len(self.tokens) + pending - 1
        positions = self._paged.positions
        depth = min(depth, sys.maxsize if positions is None else max(positions - 1 - root, 0))
        fitted = trim(draft, rows, depth)
        window = self._paged.window
        if window is not None and root + 1 + len(fitted) > window:
            return trim(most_likely_chain(draft), rows, depth)
        return fitted

    def keep(self, path: Sequence[int]) -> None:
        """Make the pending tokens and the rows of ``path`` permanent: rows that are kept move up to their end."""
        with self._paged.guard:
            (pending, draft), self._fed = self._fed, ((), EMPTY)
            if self._is_void:
                return  # its blocks are another text's by now
            self._is_prefilled = True
            start = len(self.tokens) + len(pending)
            moved = [(start + row, start + place) for place, row in enumerate(path) if row != place]
            if moved:
                sources, targets = zip(*((self._slot(a), self._slot(b)) for a, b in moved), strict=True)
                self._paged.memory.move(sources, targets)
            self._confirm([*pending, *(draft.tokens[row] for row in path)])

    def reset(self) -> None:
        """Forget everything that was read."""
        self._leave(is_evicted=False)

    def is_evicted(self, context: Tokens) -> bool:
        """Whether its blocks were given to another text."""
        return self._is_void

    def preempt(self) -> None:
        """Give all blocks back; the text is void until it is restarted."""
        self._leave(is_evicted=True)

    def fork(self) -> PagedSequence:
        """Another text that begins with all that this one has confirmed, in the same blocks."""
        other = PagedSequence(self._paged, self.tenant)
        with self._paged.guard:
            other.tokens[:] = self.tokens
            other.blocks[:] = self.blocks[: _blocks(len(self.tokens))]
            other._known, other._is_prefilled = self._known, self._is_prefilled
            self._paged.pool.share(other.blocks)
        return other

    def adopt(self, text: Tokens) -> None:
        """Take over what is known already of a text that is to be read: all but its last token at most."""
        with self._paged.guard:
            blocks, tokens = self._paged.pool.find(self._reader, text[:-1])
            self._paged.pool.share(blocks)
        self.blocks[:] = blocks
        self.tokens[:] = text[:tokens]
        self._known = tokens // BLOCK

    def imagine(self, length: int) -> None:
        """Pretend to hold so many tokens: for a forward's time it does not matter what their states are.

        Raises:
            OutOfBlocks: the pool has not enough.
        """
        self.reserve(length)
        self.tokens[:] = [0] * length
        self._known = length // BLOCK  # never to be found

    def lacks(self, rows: int) -> int:
        """How many blocks are missing before so many rows can be fed."""
        missing = _blocks(len(self.tokens) + rows) - len(self.blocks)
        return max(missing, 0) + self._writes_to_shared(rows)

    def reserve(self, rows: int) -> None:
        """Take the blocks that so many rows need; of a block that others have or know, a copy is made first.

        Raises:
            OutOfBlocks: the pool has not enough.
        """
        pool = self._paged.pool
        taken = pool.take(self.lacks(rows))
        if self._writes_to_shared(rows):
            place = len(self.tokens) // BLOCK
            shared, self.blocks[place] = self.blocks[place], taken.pop()
            self._paged.memory.copy(shared, self.blocks[place], len(self.tokens) % BLOCK)
            pool.release([shared])
        self.blocks += taken

    def feed(self, pending: Tokens, draft: Draft = EMPTY, *, asked: bool = True) -> Share:
        """What goes into the next forward of this text; where nothing is ``asked``, no logits come out of it."""
        self._fed, self._is_void = (pending, draft), False
        rows = len(pending) + len(draft)
        tree = None if _is_chain(draft) else build_tree(len(pending), draft.parents)
        past = len(self.tokens)
        return Share(
            tokens=[*pending, *draft.tokens],
            positions=past + (np.arange(rows) if tree is None else tree.depths),
            past=past,
            blocks=self.blocks[: _blocks(past + rows)],
            asked=1 + len(draft) if asked else 0,
            sees=None if tree is None else tree.ancestor_mask.astype(np.uint8).reshape(-1),
        )

    def _confirm(self, tokens: Tokens) -> None:
        self.tokens += tokens
        surplus = self.blocks[_blocks(len(self.tokens)) :]
        del self.blocks[len(self.blocks) - len(surplus) :]
        self._paged.pool.release(surplus)
        full = len(self.tokens) // BLOCK
        if full > self._known:
            self._paged.pool.know(self._reader, self.tokens, self.blocks, self._known)
            self._known = full

    def _leave(self, *, is_evicted: bool) -> None:
        with self._paged.guard:
            self._paged.pool.release(self.blocks)
            self.blocks.clear()
            self.tokens.clear()
            self._fed, self._known, self._is_void, self._is_prefilled = ((), EMPTY), 0, is_evicted, False

    def _writes_to_shared(self, rows: int) -> bool:
        """Whether the next row goes to a block that is not this text's alone."""
        place = len(self.tokens) // BLOCK
        return rows > 0 and place < len(self.blocks) and not self._paged.pool.is_own(self.blocks[place])

    def _slot(self, position: int) -> tuple[int, int]:
        return self.blocks[position // BLOCK], position % BLOCK


def _weak(tenant: Hashable, gone: deque[Hashable]) -> Hashable:
    """Stands for a tenant without keeping it alive, and is ``gone`` with it; names and numbers stand for themselves."""
    try:
        return ref(tenant, gone.append)
    except TypeError:
        return tenant


def _blocks(tokens: int) -> int:
    """How many blocks hold so many tokens."""
    return -(-tokens // BLOCK)


def _is_chain(draft: Draft) -> bool:
    return draft.parents == tuple(range(-1, len(draft) - 1))
