"""The block pool: allocates blocks of KV cache, counts each block's users, and caches prefixes.

This module handles token ids and block numbers, not the contents of the blocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from antiphon.accel.drafting.draft import Tokens, common_length
from antiphon.accel.engines.openvino.paged_inputs import BLOCK_SIZE


class OutOfBlocksError(MemoryError):
    """More blocks are needed than are free or idle."""


@dataclass(eq=False, slots=True)
class CachedBlock:
    """A node of a tenant's prefix tree: a full block whose contents can be reused.

    Attributes:
        block: Block number; -1 for the root of a tree.
        tokens: The `BLOCK_SIZE` tokens of the block; empty for the root.
        parent: The node of the block before it in the text; None for the root.
        tenant: The tenant of the tree; only set for the root.
        children: Nodes of the blocks that continue the text, by their tokens.
    """

    block: int = -1
    tokens: tuple[int, ...] = ()
    parent: CachedBlock | None = None
    tenant: Hashable = None
    children: dict[tuple[int, ...], CachedBlock] = field(default_factory=dict)


class Blocks(ABC):
    """A fixed number of blocks, and each block's number of users. Subclasses keep the idle blocks.

    Args:
        reserved: Number of blocks at the beginning that are always in use.
    """

    kind = "blocks"
    """Name of the blocks in error messages."""

    def __init__(self, num_blocks: int, *, reserved: int = 0) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, reserved - 1, -1))
        self._users = [1] * reserved + [0] * (num_blocks - reserved)

    @property
    @abstractmethod
    def num_available(self) -> int:
        """Number of blocks that can be allocated now: the free and the idle ones."""

    @abstractmethod
    def _evict_next(self) -> None:
        """Free the least recently used idle block."""

    def allocate(self, count: int) -> list[int]:
        """Return ``count`` blocks with one user each; evict idle blocks if too few are free.

        Raises:
            OutOfBlocksError: Fewer than ``count`` blocks are available. No block is allocated.
        """
        if count > self.num_available:
            raise OutOfBlocksError(
                f"{count} {self.kind} are needed, and {self.num_available} of {self.num_blocks} are available."
            )
        while len(self._free) < count:
            self._evict_next()
        allocated = [self._free.pop() for _ in range(count)]
        for block in allocated:
            self._users[block] = 1
        return allocated


class BlockPool(Blocks):
    """A fixed number of blocks. A block is free, in use by one or more sequences, or idle.

    An idle block has no user, but its contents are cached as a prefix. If no block is free, the
    least recently used idle block is evicted. Cached blocks hold confirmed tokens and are never
    written to again. Only the tenant that computed a prefix can find it.
    """

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._idle: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._cached: dict[int, CachedBlock] = {}
        self._roots: dict[Hashable, CachedBlock] = {}

    @property
    def num_available(self) -> int:
        """Number of blocks that can be allocated now: the free and the idle ones."""
        return len(self._free) + len(self._idle)

    def _evict_next(self) -> None:
        self._evict(next(iter(self._idle)))

    def share(self, blocks: Iterable[int]) -> None:
        """Add one user to each block."""
        for block in blocks:
            self._users[block] += 1
            self._idle.pop(block, None)

    def free(self, blocks: Sequence[int]) -> None:
        """Remove one user from each block. Blocks without users become idle if they are cached, otherwise free."""
        # The last block is evicted first, because it cannot be found without the earlier blocks.
        for block in reversed(blocks):
            self._users[block] -= 1
            if self._users[block] == 0:
                if block in self._cached:
                    self._idle[block] = None
                else:
                    self._free.append(block)

    def is_writable(self, block: int) -> bool:
        """Return whether a block may be written to, because it has exactly one user and is not cached."""
        return self._users[block] == 1 and block not in self._cached

    def is_free(self, block: int) -> bool:
        """Return whether the block has no user and no cached contents."""
        return self._users[block] == 0 and block not in self._cached

    def cache_prefix(self, tenant: Hashable, text: Tokens, blocks: Sequence[int], first: int = 0) -> None:
        """Cache the full blocks of a text, so that `find_prefix` finds them.

        Args:
            text: Confirmed tokens of the sequence, from its beginning.
            first: Index of the first block to add; the blocks before it have been cached before.
        """
        node = self._roots.get(tenant) or CachedBlock(tenant=tenant)
        for index in range(len(text) // BLOCK_SIZE):
            tokens = tuple(text[index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE])
            child = node.children.get(tokens)
            if child is None:
                if index < first or blocks[index] in self._cached:
                    return  # a block before this one has been evicted in the meantime
                if node.parent is None:
                    self._roots[tenant] = node
                child = CachedBlock(blocks[index], tokens, node)
                node.children[tokens] = self._cached[blocks[index]] = child
            node = child

    def find_prefix(self, tenant: Hashable, text: Tokens) -> tuple[list[int], int]:
        """Return the blocks of the longest cached prefix of a text, and the length of this prefix.

        The prefix may end inside the last block, which then holds other tokens after the prefix.
        """
        node = self._roots.get(tenant)
        blocks: list[int] = []
        while node is not None:
            start = len(blocks) * BLOCK_SIZE
            rest = tuple(text[start : start + BLOCK_SIZE])
            child = node.children.get(rest)
            if child is None or len(rest) < BLOCK_SIZE:
                best = max(node.children.values(), key=lambda each: common_length(each.tokens, rest), default=None)
                common = 0 if best is None else common_length(best.tokens, rest)
                return (blocks, start) if best is None or not common else ([*blocks, best.block], start + common)
            blocks.append(child.block)
            node = child
        return blocks, len(blocks) * BLOCK_SIZE

    def forget_tenant(self, tenant: Hashable) -> None:
        """Drop all cached prefixes of a tenant that no longer exists."""
        root = self._roots.pop(tenant, None)
        if root is not None:
            self._uncache(list(root.children.values()))

    def _evict(self, block: int) -> None:
        """Free an idle block.

        The blocks that continue its text leave the cache, because they can no longer be found.
        """
        cached = self._cached[block]
        if (parent := cached.parent) is not None:
            del parent.children[cached.tokens]
            if parent.parent is None and not parent.children:  # the tenant has no cached prefix left
                del self._roots[parent.tenant]
        self._uncache([cached])

    def _uncache(self, nodes: list[CachedBlock]) -> None:
        """Remove subtrees from the cache; their idle blocks become free."""
        while nodes:
            node = nodes.pop()
            nodes += node.children.values()
            del self._cached[node.block]
            if node.block in self._idle:
                del self._idle[node.block]
                self._free.append(node.block)


EMPTY_STATE = 0
"""The block with the state before the first token, which is zero and never written to."""

MIN_STATES, MAX_STATES = 8, 64
"""Minimum and maximum number of blocks."""

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
        """Remove the state after this text from the cache, if it is cached."""
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
