"""The state pool: allocates blocks of one recurrent state each, counts their users, and caches states by their text.

This module handles token ids and block numbers, not the contents of the blocks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from antiphon.accel.drafting.draft import Tokens
from antiphon.accel.engines.openvino.block_pool import Blocks
from antiphon.accel.engines.openvino.paged_inputs import BLOCK_SIZE

EMPTY_STATE = 0
"""The block with the state before the first token, which is zero and never written to."""

MIN_STATES, MAX_STATES = 8, 64
"""Minimum and maximum number of blocks."""

NEW_STATES = 2
"""Number of blocks that a forward pass allocates for each sequence: for the state after the last kept
row, and for the state after a full block of tokens, which is cached."""

StateKey = tuple[Hashable, tuple[int, ...]]
"""Tenant, and the text whose state a block holds."""


class StatePool(Blocks):
    """A fixed number of blocks. A block is free, in use by one or more sequences, or idle.

    An idle block has no user, but its state is cached. If no block is free, the least recently used
    idle block is evicted. States are cached only after multiples of `BLOCK_SIZE` tokens, because
    keys and values are cached in full blocks. Only the tenant that computed a state can find it.
    """

    kind = "states"

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks, reserved=EMPTY_STATE + 1)
        self._cached: OrderedDict[StateKey, int] = OrderedDict()  # least recently used first
        self._keys: dict[int, StateKey] = {}

    @property
    def num_available(self) -> int:
        """Number of blocks that can be allocated now: the free and the idle ones."""
        return len(self._free) + sum(not self._users[block] for block in self._keys)

    def _evict_next(self) -> None:
        self._uncache(next(key for key, block in self._cached.items() if not self._users[block]))

    def share(self, block: int) -> None:
        """Add one user to a block."""
        self._users[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Remove one user from each block. Blocks without users become idle if they are cached, otherwise free."""
        for block in blocks:
            self._users[block] -= 1
            if self._users[block] == 0 and block not in self._keys:
                self._free.append(block)

    def cache(self, tenant: Hashable, text: Tokens, block: int) -> None:
        """Cache the state after a text, unless there is one already."""
        key = (tenant, tuple(text))
        if key not in self._cached and block not in self._keys:
            self._cached[key], self._keys[block] = block, key

    def uncache(self, tenant: Hashable, text: Tokens) -> None:
        """Drop the cached state after a text, if there is one."""
        if (key := (tenant, tuple(text))) in self._cached:
            self._uncache(key)

    def find(self, tenant: Hashable, text: Tokens) -> tuple[int, int]:
        """Find a text's longest prefix with a cached state; return the state's block and the length of the prefix."""
        for length in range(len(text) // BLOCK_SIZE * BLOCK_SIZE, 0, -BLOCK_SIZE):
            if (key := (tenant, tuple(text[:length]))) in self._cached:
                self._cached.move_to_end(key)
                return self._cached[key], length
        return EMPTY_STATE, 0

    def forget_tenant(self, tenant: Hashable) -> None:
        """Drop all cached states of a tenant that no longer exists."""
        for key in [key for key in self._cached if key[0] == tenant]:
            self._uncache(key)

    def _uncache(self, key: StateKey) -> None:
        block = self._cached.pop(key)
        del self._keys[block]
        if self._users[block] == 0:
            self._free.append(block)
