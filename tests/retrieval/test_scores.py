"""Scores of a search: cosines from 0 to 1, comparable between questions and indexes, that never rise in a ranking."""

from pathlib import Path

import pytest

from antiphon.retrieval import (
    HashEmbedder,
    MaxSimReranker,
    Passage,
    Retriever,
    index_passages,
    read_index,
)
from antiphon.retrieval.local_index import LocalIndex

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


def test_a_single_passage_scores_high_only_if_it_fits_the_question(tmp_path: Path) -> None:
    retriever = opened(tmp_path / "index", TEXTS[:1])
    scores = [retriever.search(question)[0].score for question in ("honey keeps for years", "quarterly tax forms")]
    assert scores[0] == pytest.approx(cosine("honey keeps for years", TEXTS[0]), abs=1e-3)
    assert scores[1] == pytest.approx(0.0, abs=0.1)


def test_a_threshold_separates_questions_with_an_answer_from_others(tmp_path: Path) -> None:
    retriever = opened(tmp_path / "index", TEXTS)
    answered = [retriever.search(text.lower(), 1)[0].score or 0 for text in TEXTS]
    others = [retriever.search(text, 1)[0].score or 0 for text in ("tax forms", "purple elephants", "stock prices")]
    assert min(answered) > max(others)
    assert all(0 <= score <= 1 for score in [*answered, *others])


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


def test_scores_do_not_change_the_ranking_and_never_rise(tmp_path: Path) -> None:
    def reversed_fusion(dense, lexical):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return list(reversed(dense))

    opened(tmp_path / "index", TEXTS)
    retriever = Retriever(LocalIndex(read_index(tmp_path / "index"), EMBEDDER), EMBEDDER, fusion=reversed_fusion)
    question = "honey keeps for years"
    found = retriever.search(question, 4)
    assert found[-1].text == TEXTS[0]
    assert [hit.score for hit in found] == pytest.approx([cosine(question, TEXTS[0])] * 4, abs=1e-3)
    assert [hit.similarity for hit in found] != [hit.score for hit in found]
