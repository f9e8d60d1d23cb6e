"""Who has which block: blocks are counted by users, found again by the tokens they hold, and taken back when idle.

Knows tokens and block numbers; neither models nor what is in the memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from antiphon.accel.drafting.draft import Tokens
from antiphon.accel.engines.openvino.paged_attention import BLOCK


class OutOfBlocks(MemoryError):  # noqa: N818  # a state of affairs that callers answer
    """No block is free or idle."""


@dataclass(eq=False, slots=True)
class Known:
    """A full block that can be found again: what it holds, and the blocks that go on after it.

    Of the root of each ``tenant``'s tree there is no block.
    """

    block: int = -1
    tokens: tuple[int, ...] = ()
    before: Known | None = None
    tenant: Hashable = None
    after: dict[tuple[int, ...], Known] = field(default_factory=dict)


class BlockPool:
    """So many blocks, each free, idle (it holds what may be asked for again) or with one user or more.

    What a tenant has read is found by that tenant alone. Blocks that are known hold confirmed tokens and are never
    written to again.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._free = list(range(blocks - 1, -1, -1))
        self._users = [0] * blocks
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._known: dict[int, Known] = {}
        self._roots: dict[Hashable, Known] = {}

    @property
    def available(self) -> int:
        """How many blocks can be had now."""
        return len(self._free) + len(self._idle)

    @property
    def tenants(self) -> int:
        """Of how many tenants something is known."""
        return len(self._roots)

    def take(self, count: int) -> list[int]:
        """So many blocks, each with one user; the ones that were idle for longest are forgotten for it.

        Raises:
            OutOfBlocks: there are not so many; none is taken then.
        """
        if count > self.available:
            raise OutOfBlocks(f"{count} blocks are needed, and {self.available} of {self.blocks} are to be had.")
        while len(self._free) < count:
            self._forget(next(iter(self._idle)))
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._users[block] = 1
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """One more user for each of these."""
        for block in blocks:
            self._users[block] += 1
            self._idle.pop(block, None)

    def release(self, blocks: Sequence[int]) -> None:
        """One user less for each of these; those without any become idle where they are known, or else free."""
        for block in reversed(blocks):  # the last one first: what goes on after nothing cannot be found
            self._users[block] -= 1
            if self._users[block] == 0:
                if block in self._known:
                    self._idle[block] = None
                else:
                    self._free.append(block)

    def is_own(self, block: int) -> bool:
        """Whether its one user may write to it."""
        return self._users[block] == 1 and block not in self._known

    def is_free(self, block: int) -> bool:
        """Whether nobody uses it, and nothing is known of what it holds."""
        return self._users[block] == 0 and block not in self._known

    def know(self, tenant: Hashable, text: Tokens, blocks: Sequence[int], since: int = 0) -> None:
        """Let the blocks that hold the beginning of this text be found, from the ``since``-th on."""
        node = self._roots.get(tenant) or Known(tenant=tenant)
        for index in range(len(text) // BLOCK):
            tokens = tuple(text[index * BLOCK : (index + 1) * BLOCK])
            found = node.after.get(tokens)
            if found is None:
                if index < since or blocks[index] in self._known:
                    return  # what it hangs from was forgotten in the meantime
                if node.before is None:
                    self._roots[tenant] = node
                found = Known(blocks[index], tokens, node)
                node.after[tokens] = self._known[blocks[index]] = found
            node = found

    def find(self, tenant: Hashable, text: Tokens) -> tuple[list[int], int]:
        """The blocks that hold the longest known beginning of a text, and how many tokens of it that is.

        The last block may hold more than that, or something else behind it.
        """
        node = self._roots.get(tenant)
        blocks: list[int] = []
        while node is not None:
            start = len(blocks) * BLOCK
            rest = tuple(text[start : start + BLOCK])
            following = node.after.get(rest)
            if following is None or len(rest) < BLOCK:
                best = max(node.after.values(), key=lambda each: _common(each.tokens, rest), default=None)
                common = 0 if best is None else _common(best.tokens, rest)
                return (blocks, start) if best is None or not common else ([*blocks, best.block], start + common)
            blocks.append(following.block)
            node = following
        return blocks, len(blocks) * BLOCK

    def forget(self, tenant: Hashable) -> None:
        """Make unknown all that this tenant has read: nobody asks for it again."""
        root = self._roots.pop(tenant, None)
        if root is not None:
            self._unknow(list(root.after.values()))

    def _forget(self, block: int) -> None:
        """Free an idle block, and make unknown what went on after it."""
        known = self._known[block]
        if (before := known.before) is not None:
            del before.after[known.tokens]
            if before.before is None and not before.after:  # nothing is known of this tenant any more
                del self._roots[before.tenant]
        self._unknow([known])

    def _unknow(self, waiting: list[Known]) -> None:
        """Let these blocks and what went on after them not be found any more; those that were idle are free."""
        while waiting:
            known = waiting.pop()
            waiting += known.after.values()
            del self._known[known.block]
            if known.block in self._idle:
                del self._idle[known.block]
                self._free.append(known.block)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two texts have in common at their beginning."""
    return next(
        (index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
