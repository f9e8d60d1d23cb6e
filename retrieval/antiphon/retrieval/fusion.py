"""Fuse two rankings for one question: by vector similarity and by keywords."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import Field, replace
from typing import Any, ClassVar, Protocol, TypeVar


class Scored(Protocol):
    """A dataclass with an id and a score: a passage, or a row whose passage is not read yet."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def id(self) -> Hashable:
        """Identifies the item in both rankings."""

    @property
    def score(self) -> float | None:
        """The score of the search; higher is better."""


Item = TypeVar("Item", bound=Scored)

DENSE_WEIGHT = 0.75
"""The weight of the vector ranking in `convex_combination`; the keyword ranking has the rest."""


class Fusion(Protocol):
    """A function that merges a dense and a lexical ranking into one.

    The function may use only ids and scores, because texts are read later, only for the best items.
    """

    def __call__(self, dense: Sequence[Item], lexical: Sequence[Item], /) -> list[Item]:
        """Return the items of both rankings with new scores, best first.

        Args:
            dense: The ranking by vector similarity, best first.
            lexical: The ranking by keywords, best first.
        """


def convex_combination(dense: Sequence[Item], lexical: Sequence[Item]) -> list[Item]:
    """Fuse by a weighted sum of the scores, each scaled to the range from 0 to 1 (min-max).

    A passage that is missing in a ranking has the score 0 there. Scores are used instead of ranks
    because they show by how much a passage is better (Bruch, Gai and Ingber 2023, section 4).

    Args:
        dense: The ranking by vector similarity, best first.
        lexical: The ranking by keywords, best first.
    """
    return weighted_sum((dense, _scaled(dense), DENSE_WEIGHT), (lexical, _scaled(lexical), 1 - DENSE_WEIGHT))


def _scaled(ranking: Sequence[Item]) -> list[float]:
    scores = [passage.score or 0.0 for passage in ranking]
    least, most = min(scores, default=0.0), max(scores, default=0.0)
    return [(score - least) / (most - least) if most > least else 1.0 for score in scores]


def weighted_sum(*rankings: tuple[Sequence[Item], Sequence[float], float]) -> list[Item]:
    """Sort all passages by the weighted sum of their scores; ties keep the order of the first ranking."""
    passages: dict[Hashable, Item] = {}
    totals: dict[Hashable, float] = {}
    for ranking, scores, weight in rankings:
        for passage, score in zip(ranking, scores, strict=True):
            passages.setdefault(passage.id, passage)
            totals[passage.id] = totals.get(passage.id, 0.0) + weight * score
    best = sorted(passages, key=lambda identifier: -totals[identifier])
    return [replace(passages[identifier], score=totals[identifier]) for identifier in best]
