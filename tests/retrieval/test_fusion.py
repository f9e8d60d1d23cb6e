"""Fusion merges two rankings by scaled scores, or by ranks."""

import pytest

from antiphon.retrieval import Passage, convex_combination, reciprocal_rank_fusion
from antiphon.retrieval.fusion import Fusion


def ranking(**scores: float) -> list[Passage]:
    return [Passage(name, name, "source", 0, len(name), score) for name, score in scores.items()]


def fused(passages: list[Passage]) -> dict[str, float | None]:
    return {passage.id: passage.score for passage in passages}


def test_scores_are_scaled_and_weighted_whatever_their_range() -> None:
    dense = ranking(a=0.9, b=0.8, c=0.5)
    lexical = ranking(c=30.0, b=20.0, d=10.0)
    assert fused(convex_combination(dense, lexical)) == pytest.approx(
        {"a": 0.75, "b": 0.75 * 0.75 + 0.125, "c": 0.25, "d": 0.0}
    )
    assert fused(convex_combination(dense, lexical, weight=0.0)) == pytest.approx(
        {"c": 1.0, "b": 0.5, "a": 0.0, "d": 0.0}
    )
    assert [passage.id for passage in convex_combination(dense, lexical, weight=1.0)] == ["a", "b", "c", "d"]


def test_reciprocal_ranks_are_summed_independently_of_scores() -> None:
    dense, lexical = ranking(a=3.0, b=2.0), ranking(b=0.1, c=0.05)
    assert fused(reciprocal_rank_fusion(dense, lexical)) == pytest.approx(
        {"b": 1 / 12 + 1 / 11, "a": 1 / 11, "c": 1 / 12}
    )
    assert list(fused(reciprocal_rank_fusion(dense, lexical, k=0))) == ["b", "a", "c"]


@pytest.mark.parametrize("fusion", [convex_combination, reciprocal_rank_fusion])
def test_one_ranking_alone_keeps_its_order(fusion: Fusion) -> None:
    alone = ranking(a=0.4, b=0.3, c=0.1)
    assert [passage.id for passage in fusion(alone, [])] == ["a", "b", "c"]
    assert [passage.id for passage in fusion([], alone)] == ["a", "b", "c"]
    assert fusion([], []) == []
    assert [passage.id for passage in fusion(ranking(a=0.4, b=0.4), [])] == ["a", "b"]
