"""Weighted occurrences: every place where the last token stood votes for what comes next, by how much else agrees."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from math import log
from typing import TYPE_CHECKING

from antiphon.accel.draft import ROOT, Accepted, Draft, Tokens
from antiphon.accel.drafters.occurrences import END, Occurrences

if TYPE_CHECKING:
    from torch import Tensor

NEWEST = 2048
"""Of a very frequent token only so many places are looked at: it bounds the work of a step."""

VERSATILE = 0.5
"""How often one of the 32 most versatile tokens comes next where no known place goes on: 0.42 to 0.53, measured."""

_Branch = tuple[float, int, int, int, Sequence[int], float, int]
"""A row to be: minus its chance, its order, its parent, its token, the places that agree, their weight, its depth."""


class Blend:
    """Drafts a tree from references, prompt and the answer itself: the default.

    Every place where the last token stood is a candidate. Its weight is ``base`` to the power of how many tokens
    before it agree with the context, up to ``longest``; of each length only the ``most`` newest places count. The
    children of a row share the weight of the places that agree so far, and rows are taken best first by the product
    of the shares, each times the chance that the text goes on as any known place does: m / (m + ``escape``) after m
    agreeing tokens. That product is the row's chance, a cautious one: on recorded answers, rows of chance c held in
    1.1 c to 1.5 c of the cases, whatever c. Rows go ``depth`` tokens deep.

    What the known places leave open goes to the ``common`` most versatile tokens of the texts (Kneser and Ney's lower
    order): rows to spare guess the next token among them.

    Raises:
        ValueError: a parameter is out of range.
    """

    def __init__(
        self,
        base: float = 4.0,
        longest: int = 8,
        depth: int = 40,
        *,
        most: int = 64,
        escape: float = 2.0,
        common: int = 32,
    ) -> None:
        if base <= 1:
            raise ValueError(f"base is {base}; a longer match must weigh more, so it needs to be over 1.")
        if min(longest, depth, most) < 1:
            raise ValueError(f"longest is {longest}, depth {depth} and most {most}; each needs to be at least 1.")
        if escape <= 0:
            raise ValueError(f"escape is {escape}; something is always left open, so it needs to be over 0.")
        if common < 0:
            raise ValueError(f"common is {common}; it needs to be 0 (no such rows) or more.")
        self.base, self.longest, self.depth = base, longest, depth
        self.most, self.escape, self.common = most, escape, common
        self._log_base = log(base)
        self.begin((), ())

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> None:
        """Index the references, each alone, and the prompt, which the answer will continue."""
        self._occurrences = Occurrences()
        for reference in references:
            self._occurrences.extend(reference)
            self._occurrences.close()
        self._occurrences.extend(prompt)
        self._read = len(prompt)
        self._rank()

    def propose(self, context: Tokens, budget: int) -> Draft:
        """A tree of at most ``budget`` rows, the likeliest first."""
        self._occurrences.extend(context[self._read :])
        self._read = max(self._read, len(context))
        if len(self._occurrences.tokens) > 2 * self._ranked:
            self._rank()
        return self._grow(self._weigh(context), budget)

    def observe(self, draft: Draft, accepted: Accepted, logits: Tensor) -> None:
        """Nothing: the context given to ``propose`` tells all."""

    def _rank(self) -> None:
        """Rank the versatile tokens; done again whenever the texts have doubled, so its cost per token is bounded."""
        self._ranked = len(self._occurrences.tokens)
        self._versatile = self._occurrences.most_versatile(self.common) if self.common else []

    def _weigh(self, context: Tokens) -> dict[int, float]:
        weights: dict[int, float] = {}
        matches = self._occurrences.after(context[-self.longest :], self.longest, NEWEST)
        for matched, places in enumerate(matches, 1):
            weights.update(dict.fromkeys(places[-self.most :], self.base**matched))  # longer matches overwrite
        return weights

    def _grow(self, weights: dict[int, float], rows: int) -> Draft:
        """The ``rows`` likeliest rows, best first; equal chances go by which was found first."""
        tokens: list[int] = []
        parents: list[int] = []
        chances: list[float] = []
        text, heap = self._occurrences.tokens, self._roots(weights)
        while heap and len(tokens) < rows:
            negative, _, parent, token, places, weight, depth = heappop(heap)
            row = len(tokens)
            tokens.append(token)
            parents.append(parent)
            chances.append(-negative)
            if not places or depth >= self.depth:
                continue
            negative *= self._trust(weight, depth)
            followers = [text[place + depth] for place in places]
            if followers.count(followers[0]) < len(followers):
                for branch in self._branches(weights, row, places, depth, -negative / weight):
                    heappush(heap, branch)
            elif followers[0] != END:  # nearly always: a path that goes on as one
                heappush(heap, (negative, next(self._order), row, followers[0], places, weight, depth + 1))
        return Draft(tuple(tokens), tuple(parents), tuple(chances))

    def _roots(self, weights: dict[int, float]) -> list[_Branch]:
        """The first row of every path: tokens that followed the last one, then versatile tokens for what is left."""
        self._order = count()
        total = sum(weights.values())
        trust = self._trust(total, 0) if weights else 0.0
        branches = self._branches(weights, ROOT, weights, 0, trust / total) if weights else []
        known = {branch[3] for branch in branches}
        for token, share in self._versatile:
            if token not in known:
                branches.append((-(1 - trust) * VERSATILE * share, next(self._order), ROOT, token, (), 0.0, 1))
        heapify(branches)
        return branches

    def _trust(self, weight: float, depth: int) -> float:
        """The chance that a row goes on as one of its places does, after m agreeing tokens: m / (m + escape).

        m is what one place of that weight would agree in.
        """
        agreed = log(weight) / self._log_base + depth
        return agreed / (agreed + self.escape)

    def _branches(
        self, weights: dict[int, float], parent: int, places: Iterable[int], depth: int, scale: float
    ) -> list[_Branch]:
        """The children of a row, their chances in proportion to the weight of the places that agree."""
        branches: list[_Branch] = []
        for token, group in self._occurrences.continuations(places, depth).items():
            weight = sum([weights[place] for place in group], 0.0)
            branches.append((-scale * weight, next(self._order), parent, token, group, weight, depth + 1))
        return branches
