"""Add a head's guesses to the draft tree of other drafters, with chances that depend on whether both agree."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.accel.drafting.draft import ROOT, Draft

MIN_REST = 0.05
"""Minimum chance that all guesses of one side are wrong, because chances are estimates and may add up to 1 or more."""


class HeadTree:
    """A draft tree that a head's guesses are added to, one pass at a time.

    Below one row, let Q be the sum of the chances of the other drafters' tokens, and let R be the
    chance that no guess of the head is right. Then the weights of the tokens are:

    - a guess that another drafter has: the chance that the head gives it;
    - another guess: this chance times 1 - Q, because the other drafters do not have the token;
    - another drafter's token that the head does not guess: its chance times R;
    - all other tokens together: (1 - Q) R.

    Weights divided by their sum are chances. So a token of both drafters is more likely than either
    of them says, and a token of one is less likely. This is Bayes' rule for sources whose errors
    are independent, if a wrong guess of the head hits a token of the other drafters as often as
    these drafters are right with it.

    Args:
        tree: The draft of the other drafters, without probes. Chances are calibrated.
    """

    def __init__(self, tree: Draft) -> None:
        self._tokens, self._parents = list(tree.tokens), list(tree.parents)
        above = (1.0 if parent == ROOT else tree.chances[parent] for parent in tree.parents)
        self._given = [
            min(chance / one, 1.0) if one > 0 else 0.0 for chance, one in zip(tree.chances, above, strict=True)
        ]
        self._children = {row: dict(below) for row, below in tree.children.items()}

    def add(self, row: int, guesses: Sequence[tuple[int, float]]) -> tuple[int, float]:
        """Add guesses at a row, a leaf or a row of the other drafters.

        Args:
            guesses: Tokens and chances, each if ``row`` is right.

        Returns:
            The row of the first guess, and its chance if ``row`` is right.
        """
        below = self._children.setdefault(row, {})
        rest = max(1 - sum(self._given[child] for child in below.values()), MIN_REST)
        miss = max(1 - sum(chance for _, chance in guesses), MIN_REST)
        weights = {token: self._given[child] * miss for token, child in below.items()}
        weights |= {token: chance * (1.0 if token in below else rest) for token, chance in guesses}
        total = sum(weights.values()) + rest * miss
        for token, weight in weights.items():
            if token not in below:
                below[token] = len(self._tokens)
                self._tokens.append(token)
                self._parents.append(row)
                self._given.append(0.0)
            self._given[below[token]] = weight / total
        best = below[guesses[0][0]]
        return best, self._given[best]

    def coverage(self, row: int, depth: int) -> list[float]:
        """Return, for each depth from 1 to ``depth``, the chance that the tree has the right token there.

        The chances hold if ``row`` is right, and depths are counted from this row.
        """
        chances, reached = [0.0] * depth, {row: (0, 1.0)}
        for child in range(row + 1, len(self._tokens)):
            if self._parents[child] in reached:
                level, above = reached[self._parents[child]]
                if level < depth:
                    reached[child] = level + 1, above * self._given[child]
                    chances[level] += reached[child][1]
        return [min(chance, 1.0) for chance in chances]

    def draft(self) -> Draft:
        """Return the tree as a draft."""
        chances: list[float] = []
        for parent, given in zip(self._parents, self._given, strict=True):
            chances.append(given if parent == ROOT else chances[parent] * given)
        return Draft.unchecked(tuple(self._tokens), tuple(self._parents), tuple(chances))
