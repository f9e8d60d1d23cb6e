"""Suffix match: every place where the last token occurred counts, weighted by how many tokens before it match too."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from math import log

from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted, Draft, Logits, Tokens
from antiphon.accel.drafting.drafters.contained import Contained
from antiphon.accel.drafting.drafters.occurrences import Occurrences
from antiphon.accel.drafting.drafters.runners_up import RunnersUp, contexts

NEWEST = 2048
"""Of a very frequent token only so many places are looked at: it bounds the work of a step."""

VERSATILE = 0.5
"""How often one of the 32 most versatile tokens comes next where no known place is right: 0.42 to 0.53, measured."""

LEAST_CHANCE = 0.001
"""A guess of a smaller chance is never a row: drafts of 64 rows end at about 0.008, and a longer heap costs time."""

_Branch = tuple[float, int, int, int, int, Sequence[int], float, int]
"""A possible row: minus its chance, its order, its parent and the token there, its token, the places that match, their
weight, its depth."""


class SuffixMatch:
    """Drafts a tree from references, prompt and the answer itself, and from the model's runners-up.

    Every place where the last token occurred is a candidate. Its weight is ``base`` to the power of how many tokens
    before it match the context, up to ``longest``; of each length only the ``most`` newest places count. The children
    of a row share the weight of the places that match so far, and rows are taken best first by the product of the
    shares, each times the chance that the text goes on as any known place does: m / (m + ``escape``) after m matching
    tokens. That product is the row's chance, a low estimate: on recorded answers, rows of chance c were accepted in
    1.1 c to 1.5 c of the cases, for every c. Rows go ``depth`` tokens deep.

    The probability that is left over goes to the model's runners-up (see `RunnersUp`), below every row, and what is
    left of that below the root to the ``common`` most versatile tokens of the texts (Kneser and Ney's lower order).
    ``recycling`` says which runners-up: True for those of this request alone, a table for those that it holds and
    will hold from other requests, False for none.

    Without ``branching`` it drafts a chain, the likeliest child of each row, for engines that verify nothing else: of a
    tree of as many rows the likeliest path is shorter.

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
        recycling: bool | RunnersUp = True,
        branching: bool = True,
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
        self.most, self.escape, self.common, self.branching = most, escape, common, branching
        self._log_base = log(base)
        self.runners_up = RunnersUp() if recycling is True else None if recycling is False else recycling
        self._forgets = recycling is True
        self.begin((), ())

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> None:
        """Index the prompt, which the answer will continue, and each reference that does not stand in it, alone."""
        self._occurrences = Occurrences()
        within = Contained(prompt)
        for reference in references:
            if reference not in within:
                self._occurrences.extend(reference)
                self._occurrences.close()
        self._occurrences.extend(prompt)
        self._read = len(prompt)
        self._rank()
        self._tail = tuple(prompt[-2:])
        if self.runners_up is not None and self._forgets:
            self.runners_up.clear()

    def propose(self, context: Tokens, budget: int) -> Draft:
        """A tree of at most ``budget`` rows, the likeliest first."""
        self._occurrences.extend(context[self._read :])
        self._read = max(self._read, len(context))
        if len(self._occurrences.tokens) > 2 * self._ranked:
            self._rank()
        return self._grow(self._weigh(context), context, budget)

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """Learn what the model found likely after every row."""
        if self.runners_up is not None:
            self.runners_up.learn(self._tail, draft, logits)
            self._tail = (*self._tail, *accepted.tokens)[-2:]

    def _rank(self) -> None:
        """Rank the versatile tokens; done again whenever the texts have doubled, so its cost per token is bounded."""
        self._ranked = len(self._occurrences.tokens)
        versatile = self._occurrences.most_versatile(self.common) if self.common else []
        self._versatile = {token: VERSATILE * share for token, share in versatile}

    def _weigh(self, context: Tokens) -> dict[int, float]:
        weights: dict[int, float] = {}
        matches = self._occurrences.after(context[-self.longest :], self.longest, NEWEST)
        for matched, places in enumerate(matches, 1):
            weights.update(dict.fromkeys(places[-self.most :], self.base**matched))  # longer matches overwrite
        return weights

    def _grow(self, weights: dict[int, float], context: Tokens, rows: int) -> Draft:
        """The ``rows`` likeliest rows, best first; equal chances go by which was found first."""
        tokens: list[int] = []
        parents: list[int] = []
        chances: list[float] = []
        self._order = count()
        [(before, last)] = contexts(context[-2:], EMPTY)
        heap = self._branches(weights, ROOT, (-1.0, 0, ROOT, before, last, list(weights), sum(weights.values()), 0))
        heapify(heap)
        while heap and len(tokens) < rows:
            branch = heappop(heap)
            row = len(tokens)
            parents.append(branch[2])
            tokens.append(branch[4])
            chances.append(-branch[0])
            if branch[-1] < self.depth:
                for child in self._branches(weights, row, branch):
                    heappush(heap, child)
        return Draft.trusted(tuple(tokens), tuple(parents), tuple(chances))

    def _trust(self, weight: float, depth: int) -> float:
        """The chance that a row goes on as one of its places does, after m matching tokens: m / (m + escape).

        m is how many tokens a single place of that weight matches.
        """
        agreed = log(weight) / self._log_base + depth
        return agreed / (agreed + self.escape)

    def _branches(self, weights: dict[int, float], row: int, branch: _Branch) -> list[_Branch]:
        """The children of a row, or the likeliest: the tokens at its places, and guesses for what is left over."""
        negative, _, _, before, last, places, weight, depth = branch
        guesses = self._guesses(row, before, last)
        trust = self._trust(weight, depth) if places else 0.0
        branches: list[_Branch] = []
        for token, group in self._occurrences.continuations(places, depth).items():
            agreeing = sum([weights[place] for place in group])
            share = trust * agreeing / weight + (1 - trust) * guesses.pop(token, 0.0)
            branches.append((negative * share, next(self._order), row, last, token, group, agreeing, depth + 1))
        negative *= 1 - trust
        for token, guess in guesses.items():
            if negative * guess < -LEAST_CHANCE:
                branches.append((negative * guess, next(self._order), row, last, token, (), 0.0, depth + 1))
        return branches if self.branching else [min(branches)] if branches else []

    def _guesses(self, row: int, before: int, last: int) -> dict[int, float]:
        """What comes next where no place is right: the model's runners-up, and below the root versatile tokens too."""
        guesses = {} if self.runners_up is None else self.runners_up.after(before, last)
        if row == ROOT:
            left = 1 - sum(guesses.values())
            for token, share in self._versatile.items():
                if token not in guesses:
                    guesses[token] = left * share
        return guesses
