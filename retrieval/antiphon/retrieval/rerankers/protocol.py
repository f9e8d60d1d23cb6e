"""The interface of rerankers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Protocol

from antiphon.retrieval.passage import Passage


class Reranker(Protocol):
    """Improves the order of the candidates of a search."""

    @property
    def name(self) -> str:
        """The name of the reranker."""

    @property
    def depth(self) -> int:
        """The number of candidates to rerank for one question."""

    def rerank(self, question: str, passages: Sequence[Passage]) -> list[Passage]:
        """Return the same passages with new scores, best first; equal scores keep their order.

        Args:
            passages: The candidates, best first.
        """


def sort_by_score(passages: Sequence[Passage], keys: Sequence[float], scores: Sequence[float]) -> list[Passage]:
    """Return the passages sorted by decreasing key, each with its score. Passages with equal keys keep their order."""
    order = sorted(range(len(passages)), key=lambda place: -keys[place])
    return [replace(passages[place], score=float(scores[place])) for place in order]


def falling(scores: Sequence[float]) -> list[float]:
    """Raise scores of a ranking so that they never increase from one place to the next.

    Each score becomes the maximum of itself and all later scores.
    """
    return list(accumulate(reversed(scores), max))[::-1]
