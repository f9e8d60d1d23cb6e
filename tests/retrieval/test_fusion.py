"""Scores: how two rankings are merged, and which scores a search returns."""

from pathlib import Path

import pytest

from antiphon.retrieval import (
    HashEmbedder,
    MaxSimReranker,
    Passage,
    Retriever,
    convex_combination,
    index_passages,
)
from antiphon.retrieval.local_index import LocalIndex


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
    assert [passage.id for passage in convex_combination(dense, lexical)] == ["a", "b", "c", "d"]


EMBEDDER = HashEmbedder()
TEXTS = [
    "Honey keeps for years in a closed jar.",
    "Bees fly up to three kilometres for nectar.",
    "A hive has frames of wax and one queen.",
    "The moon moves away from us by four centimetres a year.",
]


def opened(folder: Path, texts: list[str], reranker: MaxSimReranker | None = None) -> Retriever:
    passages = [Passage.at(f"{place}.txt", 0, text) for place, text in enumerate(texts)]
    index_passages(passages, folder, EMBEDDER)
    return Retriever.open(folder, reranker=reranker)


def cosine(question: str, text: str) -> float:
    return max(0.0, float(EMBEDDER.embed_queries([question])[0] @ EMBEDDER.embed_documents([text])[0]))


@pytest.mark.parametrize("reranker", [None, MaxSimReranker(EMBEDDER)])
def test_the_score_of_a_passage_is_the_same_in_every_index(reranker: MaxSimReranker | None, tmp_path: Path) -> None:
    question = "how long keeps honey in a jar"
    expected = cosine(question, TEXTS[0])
    for count in range(1, len(TEXTS) + 1):
        [best] = opened(tmp_path / str(count), TEXTS[:count], reranker).search(question, 1)
        assert best.text == TEXTS[0]
        assert best.score == pytest.approx(expected, abs=1e-3)
        assert best.similarity == best.score


class ByKeywords:
    """An index whose vector search finds nothing, as if the passage was not among its first results."""

    def __init__(self, index: LocalIndex) -> None:
        self._index = index

    def vector_search(self, vector: object, k: int, where: object = None) -> list[Passage]:
        return []

    def keyword_search(self, question: str, k: int, where: object = None) -> list[Passage]:
        return self._index.keyword_search(question, k)


def test_passages_that_only_keywords_find_have_their_cosine_as_well(tmp_path: Path) -> None:
    retriever = opened(tmp_path / "index", TEXTS)
    question = "queen of wax"
    expected = [(hit.text, hit.score) for hit in retriever.search(question, 1)]
    assert isinstance(retriever.index, LocalIndex)
    found = Retriever(ByKeywords(retriever.index), EMBEDDER).search(question, 1)
    assert [hit.text for hit in found] == [expected[0][0]]
    assert found[0].score == pytest.approx(expected[0][1], abs=1e-3)
