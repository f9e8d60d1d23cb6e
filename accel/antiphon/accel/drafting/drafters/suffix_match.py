"""Suffix match: draft the tokens that followed earlier occurrences of the last tokens; longer matches weigh more."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from math import log

from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted, Draft, Logits, Tokens
from antiphon.accel.drafting.drafters.recycling_table import RecyclingTable, context_keys
from antiphon.accel.drafting.drafters.token_index import Contained, TokenIndex

BASE = 4.0
"""Factor by which one more matching token raises the weight of a position."""

_LOG_BASE = log(BASE)

ESCAPE = 2.0
"""Weight of an unknown continuation."""

MAX_MATCH, MAX_POSITIONS = 8, 64
"""Maximum length of a match, and maximum number of positions per length (the newest ones)."""

MAX_OCCURRENCES = 2048
"""Maximum number of occurrences of the last token to look at, the newest ones: it bounds the time of a step."""

COMMON_SHARE = 0.5
"""Probability that one of the 32 common tokens comes next if no known occurrence is right; measured 0.42 to 0.53."""

MIN_CHANCE = 0.001
"""Guesses with a smaller chance are dropped, because long heaps are slow.

For comparison: the last row of a 64-row draft has a chance of about 0.008.
"""

_Branch = tuple[float, int, int, int, int, Sequence[int], float, int]
"""An entry of the heap of possible rows: minus its chance, serial number, parent, token of the parent, own token,
matching positions, their total weight, depth."""


class SuffixMatch:
    """A `Drafter` that copies a tree from references, prompt and answer, and adds the model's own top tokens.

    Every position after an earlier occurrence of the last token votes for the token there. The
    weight of a vote is `BASE` to the power of the number of matching tokens before the position.
    The children of a row share the weight of the positions that still match. Each share is
    multiplied by the probability that one of the positions is right: m / (m + `ESCAPE`) after m
    matching tokens. The chance of a row is the product of these values over its path. The most
    likely rows are taken first. Chances are low estimates: on recorded answers, of the rows with
    chance c, a share between 1.1 c and 1.5 c was accepted.

    Below every row, the recycling table's tokens share part of the remaining probability. Below the
    root, half of the rest is given to the ``common`` tokens that follow the most different tokens
    (lower-order distribution of Kneser and Ney).

    Args:
        common: Number of common tokens to guess below the root.
        recycling: Table of the model's top tokens by context. True: a table for this request alone; False: no table.
        branching: Whether to draft a tree. False: draft the chain of the most likely children, for
            engines that can verify only chains. (A tree with the same number of rows contains only
            shorter paths.)

    Raises:
        ValueError: A parameter is out of range.
    """

    def __init__(
        self,
        *,
        depth: int = 40,
        common: int = 32,
        recycling: bool | RecyclingTable = True,
        branching: bool = True,
    ) -> None:
        if depth < 1 or common < 0:
            raise ValueError(f"depth is {depth} and common is {common}; give 1 or more, and 0 (no such rows) or more.")
        self.depth, self.common, self.branching = depth, common, branching
        self.recycling_table = RecyclingTable() if recycling is True else None if recycling is False else recycling
        self._clears_table = recycling is True
        self.begin((), ())

    def use_table(self, table: RecyclingTable | None) -> None:
        """Share a recycling table with other requests, or use no table; ignored if ``recycling`` was given."""
        if self._clears_table:
            self.recycling_table, self._clears_table = table, False

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> None:
        """Index the prompt, and each reference that the prompt does not contain."""
        self._index = TokenIndex()
        in_prompt = Contained(prompt)
        for reference in references:
            if reference not in in_prompt:
                self._index.extend(reference)
                self._index.close()
        self._index.extend(prompt)
        self._read = len(prompt)
        self._rank_common_tokens()
        self._tail = tuple(prompt[-2:])
        if self.recycling_table is not None and self._clears_table:
            self.recycling_table.clear()

    def propose(self, context: Tokens, budget: int) -> Draft:
        """Return a tree of at most ``budget`` rows, the most likely ones."""
        self._index.extend(context[self._read :])
        self._read = max(self._read, len(context))
        if len(self._index.tokens) > 2 * self._ranked:
            self._rank_common_tokens()
        return self._grow(self._weigh(context), context, budget)

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """Write the model's top tokens after every row to the recycling table."""
        if self.recycling_table is not None:
            self.recycling_table.update(self._tail, draft, logits)
            self._tail = (*self._tail, *accepted.tokens)[-2:]

    def _rank_common_tokens(self) -> None:
        """Rank the common tokens.

        The ranking is renewed only when the texts have doubled in length, which bounds the cost per
        token.
        """
        self._ranked = len(self._index.tokens)
        ranked = self._index.kneser_ney_unigrams(self.common) if self.common else []
        self._common_tokens = {token: COMMON_SHARE * share for token, share in ranked}

    def _weigh(self, context: Tokens) -> dict[int, float]:
        """Return the weight of each position after a match: BASE ** (number of matching tokens)."""
        weights: dict[int, float] = {}
        matches = self._index.find_matches(context[-MAX_MATCH:], MAX_MATCH, MAX_OCCURRENCES)
        for matched, positions in enumerate(matches, 1):
            newest = positions[-MAX_POSITIONS:]
            weights.update(dict.fromkeys(newest, BASE**matched))  # longer matches overwrite shorter ones
        return weights

    def _grow(self, weights: dict[int, float], context: Tokens, rows: int) -> Draft:
        """Return the ``rows`` most likely rows, best first; equally likely rows in the order of discovery."""
        tokens: list[int] = []
        parents: list[int] = []
        chances: list[float] = []
        self._order = count()
        [(before, last)] = context_keys(context[-2:], EMPTY)
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
        return Draft.unchecked(tuple(tokens), tuple(parents), tuple(chances))

    def _trust(self, weight: float, depth: int) -> float:
        """Return the probability that one of the known positions is right: m / (m + ESCAPE).

        m is a number of matching tokens: ``depth``, plus the number for which a single position
        would have this ``weight``.
        """
        matched = log(weight) / _LOG_BASE + depth
        return matched / (matched + ESCAPE)

    def _branches(self, weights: dict[int, float], row: int, branch: _Branch) -> list[_Branch]:
        """Return the children of a row: the tokens at its positions, and guesses for the remaining probability."""
        negative, _, _, before, last, positions, weight, depth = branch
        guesses = self._guesses(row, before, last)
        trust = self._trust(weight, depth) if positions else 0.0
        branches: list[_Branch] = []
        for token, group in self._index.continuations(positions, depth).items():
            agreeing = sum([weights[position] for position in group])
            share = trust * agreeing / weight + (1 - trust) * guesses.pop(token, 0.0)
            branches.append((negative * share, next(self._order), row, last, token, group, agreeing, depth + 1))
        negative *= 1 - trust
        for token, guess in guesses.items():
            if negative * guess < -MIN_CHANCE:
                branches.append((negative * guess, next(self._order), row, last, token, (), 0.0, depth + 1))
        return branches if self.branching else [min(branches)] if branches else []

    def _guesses(self, row: int, before: int, last: int) -> dict[int, float]:
        """Return guesses in case no position is right: recycled tokens and, below the root, common tokens."""
        guesses = {} if self.recycling_table is None else self.recycling_table.lookup(before, last)
        if row == ROOT:
            left = 1 - sum(guesses.values())
            for token, share in self._common_tokens.items():
                if token not in guesses:
                    guesses[token] = left * share
        return guesses
