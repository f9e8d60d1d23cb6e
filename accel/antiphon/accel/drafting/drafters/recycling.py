"""Token Recycling (Luo et al. 2024, arXiv 2408.08696): a tree of the model's top tokens from earlier forward passes."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import count

from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted, Draft, Logits, Tokens
from antiphon.accel.drafting.drafters.recycling_table import RecyclingTable, context_keys


class Recycling:
    """A `Drafter` that drafts what the model predicted earlier after the same last tokens.

    The drafter looks up the last two tokens, or else the last token alone. Rows are ranked by the
    product of the chances on their path. So the tree is deep along paths of which the model was
    certain; the paper's tree has a fixed shape. Every row of every forward pass updates the table,
    even if it is not accepted.

    Args:
        table: Table to use and update; requests to the same model can share it. By default the drafter has its own
            table, which each request clears.
    """

    def __init__(self, table: RecyclingTable | None = None) -> None:
        self.recycling_table = RecyclingTable() if table is None else table
        self._clears_table = table is None
        self.begin((), ())

    def use_table(self, table: RecyclingTable | None) -> None:
        """Share ``table`` with other requests, unless it is None or the constructor got a table."""
        if self._clears_table and table is not None:
            self.recycling_table, self._clears_table = table, False

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> None:
        """Remember the last two tokens of the prompt."""
        if self._clears_table:
            self.recycling_table.clear()
        self._tail = tuple(prompt[-2:])

    def propose(self, context: Tokens, budget: int) -> Draft:
        """Return a tree of at most ``budget`` rows, the most likely ones; empty if the last token is unknown."""
        tokens: list[int] = []
        parents: list[int] = []
        chances: list[float] = []
        order = count()
        [(before, last)] = context_keys(context[-2:], EMPTY)
        heap = [
            (-chance, next(order), ROOT, last, token)
            for token, chance in self.recycling_table.lookup(before, last).items()
        ]
        heapify(heap)
        while heap and len(tokens) < budget:
            negative, _, parent, before, last = heappop(heap)
            row = len(tokens)
            tokens.append(last)
            parents.append(parent)
            chances.append(-negative)
            for token, chance in self.recycling_table.lookup(before, last).items():
                heappush(heap, (negative * chance, next(order), row, last, token))
        return Draft.unchecked(tuple(tokens), tuple(parents), tuple(chances))

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """Write the model's top tokens after every row to the table."""
        self.recycling_table.update(self._tail, draft, logits)
        self._tail = (*self._tail, *accepted.tokens)[-2:]
