"""A pool of n-grams by their first token, at most so many of each, the newest. Knows neither models nor drafts."""

from __future__ import annotations

from collections.abc import Iterator

from antiphon.accel.drafting.draft import Tokens


class Pool:
    """N-grams by their first token, at most ``capacity`` of each: Lookahead decoding's n-gram pool.

    One that comes again becomes the newest; looking them up does not (Fu et al. 2024, arXiv 2402.02057, section 3.2).
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._followers: dict[int, dict[tuple[int, ...], None]] = {}

    def add(self, ngram: Tokens) -> None:
        """Make it the newest n-gram of its first token; one too many drops the oldest."""
        first, *rest = ngram
        followers = self._followers.setdefault(first, {})
        followers.pop(tuple(rest), None)
        followers[tuple(rest)] = None
        if len(followers) > self.capacity:
            del followers[next(iter(followers))]

    def read(self, text: Tokens, size: int) -> None:
        """Add every n-gram of that size that a text has, in its order."""
        for start in range(len(text) - size + 1):
            self.add(text[start : start + size])

    def after(self, token: int) -> list[tuple[int, ...]]:
        """What followed this token, the oldest first: n-grams without it."""
        return list(self._followers.get(token, ()))

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """All n-grams, those of one first token together, the oldest of these first."""
        return ((first, *rest) for first, followers in self._followers.items() for rest in followers)
