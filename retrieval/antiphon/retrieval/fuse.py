"""Two rankings of one question to one: passages near in meaning, and passages that share its words."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import Field, replace
from typing import Any, ClassVar, Protocol, TypeVar


class Scored(Protocol):
    """A dataclass with an id and a score: a passage, or the row of one that has not been read yet."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def id(self) -> Hashable:
        """What it is known by in both rankings."""

    @property
    def score(self) -> float | None:
        """Higher is better."""


Item = TypeVar("Item", bound=Scored)


class Fusion(Protocol):
    """Makes one ranking of a dense and a lexical one, both best first; the new scores order the items.

    It may look at ids and scores alone: texts are read afterwards, of those that are wanted.
    """

    def __call__(self, dense: Sequence[Item], lexical: Sequence[Item], /) -> list[Item]:
        """The items of both, best first, with their new scores."""


def convex(dense: Sequence[Item], lexical: Sequence[Item], *, weight: float = 0.75) -> list[Item]:
    """``weight`` times the dense score plus the rest times the lexical one, each scaled to reach from 0 to 1.

    A passage that only one ranking has scores 0 in the other. Bruch, Gai and Ingber (2023), section 4: it loses less
    than ranks do, because scores say by how much a passage is better.

    Raises:
        ValueError: the weight is not from 0 to 1.
    """
    if not 0 <= weight <= 1:
        raise ValueError(f"weight is {weight}; the share of the dense score is from 0 to 1.")
    return _sum((dense, _scaled(dense), weight), (lexical, _scaled(lexical), 1 - weight))


def reciprocal_rank(dense: Sequence[Item], lexical: Sequence[Item], *, k: int = 10) -> list[Item]:
    """The sum of 1 / (k + rank) over both rankings (Cormack, Clarke and Büttcher 2009): it needs no scores.

    Raises:
        ValueError: ``k`` is negative.
    """
    if k < 0:
        raise ValueError(f"k is {k}; what is added to a rank is 0 or more.")
    return _sum(
        *((ranking, [1 / (k + rank) for rank in range(1, len(ranking) + 1)], 1.0) for ranking in (dense, lexical))
    )


def _scaled(ranking: Sequence[Item]) -> list[float]:
    scores = [passage.score or 0.0 for passage in ranking]
    least, most = min(scores, default=0.0), max(scores, default=0.0)
    return [(score - least) / (most - least) if most > least else 1.0 for score in scores]


def _sum(*rankings: tuple[Sequence[Item], Sequence[float], float]) -> list[Item]:
    """All passages by the weighted sum of their scores; equal ones stay in the order of the first ranking."""
    passages: dict[Hashable, Item] = {}
    totals: dict[Hashable, float] = {}
    for ranking, scores, weight in rankings:
        for passage, score in zip(ranking, scores, strict=True):
            passages.setdefault(passage.id, passage)
            totals[passage.id] = totals.get(passage.id, 0.0) + weight * score
    best = sorted(passages, key=lambda identifier: -totals[identifier])
    return [replace(passages[identifier], score=totals[identifier]) for identifier in best]
