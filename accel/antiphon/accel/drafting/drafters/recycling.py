"""Token Recycling: the model's own runners-up as a tree (Luo et al. 2024, arXiv 2408.08696). Knows no texts."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import count

from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted, Draft, Logits, Tokens
from antiphon.accel.drafting.drafters.runners_up import RunnersUp, contexts


class Recycling:
    """Drafts what the model found likely when it last read the same two tokens, or the same one.

    Rows are taken best first by the product of the chances on their path, so the tree is deep where the model was
    sure; the paper's tree always has the same shape. Every row of every forward updates the table, accepted or not.
    Without a ``table`` the drafter has one of its own, cleared for each request; a table that is given is kept, and
    may be shared by requests of the same model.
    """

    def __init__(self, table: RunnersUp | None = None) -> None:
        self.runners_up = RunnersUp() if table is None else table
        self._forgets = table is None
        self.begin((), ())

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> None:
        """Of the prompt only its last two tokens matter."""
        if self._forgets:
            self.runners_up.clear()
        self._tail = tuple(prompt[-2:])

    def propose(self, context: Tokens, budget: int) -> Draft:
        """A tree of at most ``budget`` rows, the likeliest first; empty after a token of which nothing is known."""
        tokens: list[int] = []
        parents: list[int] = []
        chances: list[float] = []
        order = count()
        [(before, last)] = contexts(context[-2:], EMPTY)
        heap = [
            (-chance, next(order), ROOT, last, token) for token, chance in self.runners_up.after(before, last).items()
        ]
        heapify(heap)
        while heap and len(tokens) < budget:
            negative, _, parent, before, last = heappop(heap)
            row = len(tokens)
            tokens.append(last)
            parents.append(parent)
            chances.append(-negative)
            for token, chance in self.runners_up.after(before, last).items():
                heappush(heap, (negative * chance, next(order), row, last, token))
        return Draft.trusted(tuple(tokens), tuple(parents), tuple(chances))

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """Learn what the model found likely after every row."""
        self.runners_up.learn(self._tail, draft, logits)
        self._tail = (*self._tail, *accepted.tokens)[-2:]
