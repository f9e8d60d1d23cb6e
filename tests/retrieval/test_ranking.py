"""Ranking: how two rankings are merged, reranked, and which scores a search returns."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from antiphon.retrieval import (
    CrossEncoderReranker,
    HashEmbedder,
    MaxSimReranker,
    MiniLMEmbedder,
    Passage,
    Reranker,
    Retriever,
    convex_combination,
    index_passages,
    load_reranker,
)
from antiphon.retrieval.encoder_runtime.device import pick_precision
from antiphon.retrieval.local_index import LocalIndex
from antiphon.retrieval.vector_index.flat import Vectors


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


CLOSE = 2e-3 if pick_precision("cpu") == "float32" else 2e-2
"""The tolerance between scores of one passage in two batches, in the precision of this machine."""


def passages(*texts: str, scores: tuple[float, ...] = ()) -> list[Passage]:
    made = [Passage.at(f"source {place}", 0, text) for place, text in enumerate(texts)]
    return [replace(passage, score=score) for passage, score in zip(made, scores, strict=True)] if scores else made


RERANKERS: dict[str, Callable[[pytest.FixtureRequest], Reranker]] = {
    "maxsim of words": lambda request: MaxSimReranker(HashEmbedder()),
    "maxsim": lambda request: MaxSimReranker(request.getfixturevalue("minilm")),
    "cross-encoder": lambda request: CrossEncoderReranker(
        request.getfixturevalue("toy_cross_encoders")[1], device="cpu", max_length=48
    ),
}


@pytest.fixture(scope="module", params=RERANKERS)
def reranker(request: pytest.FixtureRequest) -> Reranker:
    return RERANKERS[request.param](request)


def test_the_same_passages_come_back_with_falling_scores(reranker: Reranker) -> None:
    given = passages("a cat", "a dog and a cat", "x " * 200, "!", "the moon", scores=(0.5, 0.4, 0.3, 0.2, 0.1))
    found = reranker.rerank("where is the cat", given)
    assert sorted(passage.id for passage in found) == sorted(passage.id for passage in given)
    scores = [passage.score for passage in found if passage.score is not None]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == len(given)
    assert all(np.isfinite(scores))
    assert [passage.score for passage in given] == [0.5, 0.4, 0.3, 0.2, 0.1], "passages are values"


def test_equal_passages_keep_their_order_and_no_passages_give_none(reranker: Reranker) -> None:
    given = passages("the same", "the same", "the same", scores=(0.5, 0.5, 0.5))
    found = reranker.rerank("same", given)
    assert [passage.source for passage in found] == ["source 0", "source 1", "source 2"]
    assert reranker.rerank("same", []) == []


def test_maxsim_finds_the_answer_inside_a_passage_on_another_topic(minilm: MiniLMEmbedder) -> None:
    """Whole-text vectors prefer the passage on the question's topic; token vectors find the answer."""
    texts = [
        "The savanna is home to lions, elephants, giraffes and many birds. The cheetah is the fastest animal on land, "
        "but it tires after a few hundred metres and then loses its prey to hyenas. Visitors come from June to "
        "October, when the grass is short. The rains begin in November.",
        "Fast animals: which animal is fast, which is the fastest in water, and which is the fastest in the air.",
        "The train leaves at nine, and which of them is the best is not known.",
    ]
    question = "Which animal is the fastest on land?"
    dense = (minilm.embed_documents(texts) @ minilm.embed_queries([question])[0]).tolist()
    before = sorted(passages(*texts, scores=tuple(dense)), key=lambda passage: -(passage.score or 0))
    assert before[0].text == texts[1]
    counts = np.zeros(minilm.vocabulary_size, np.int64)
    for ids in minilm.token_ids(texts):
        counts[np.unique(ids)] += 1
    assert MaxSimReranker(minilm, counts, len(texts)).rerank(question, before)[0].text == texts[0]


def test_rare_tokens_weigh_more() -> None:
    """Each passage contains one of the question's two words; the passage with the rarer word ranks first."""
    embedder = HashEmbedder()
    counts = np.zeros(embedder.vocabulary_size, np.int64)
    counts[embedder.token_ids(["common"])[0]] = 99
    counts[embedder.token_ids(["rare"])[0]] = 1
    found = MaxSimReranker(embedder, counts, 100, weight=1).rerank(
        "common rare", passages("common thing", "rare thing")
    )
    assert [passage.text for passage in found] == ["rare thing", "common thing"]


def test_the_score_of_maxsim_is_the_mean_similarity_also_of_a_single_passage() -> None:
    reranker = MaxSimReranker(HashEmbedder())
    alone = {text: reranker.rerank("cat", passages(text))[0].score for text in ("a cat", "the moon")}
    assert alone == pytest.approx({"a cat": 1.0, "the moon": 0.0}, abs=0.2)
    found = {p.text: p.score for p in reranker.rerank("cat", passages("the moon", "a cat", scores=(0.2, 0.8)))}
    assert found == pytest.approx(alone)
    inverted = MaxSimReranker(HashEmbedder(), weight=0).rerank("cat", passages("dog", "cat", scores=(0.8, 0.2)))
    assert [p.text for p in inverted] == ["dog", "cat"]
    assert [p.score for p in inverted] == pytest.approx([1.0, 1.0]), "scores never rise along a ranking"


def test_a_cross_encoder_sorts_by_logits_and_reports_sigmoids(toy_cross_encoders: dict[int, Path]) -> None:
    """Even if the sigmoids of good passages are all 1, the order must be that of the logits."""
    reranker = CrossEncoderReranker(toy_cross_encoders[1], device="cpu", max_length=48)
    given = passages(*(f"{'abc' * n} {'xyz' * (9 - n)}" for n in range(10)))
    logits = reranker._model.predict([("cat", p.text) for p in given], activation_fn=reranker._raw)
    found = reranker.rerank("cat", given)
    assert [p.text for p in found] == [given[place].text for place in np.argsort(-logits, kind="stable")]
    assert all(p.score is not None and 0 <= p.score <= 1 for p in found)
    assert len({p.score for p in found}) < len(found), "the case must be one where sigmoids tie"


def test_a_model_with_several_outputs_is_refused(toy_cross_encoders: dict[int, Path]) -> None:
    with pytest.raises(ValueError, match="gives 3 numbers for a pair; a reranker gives one"):
        CrossEncoderReranker(toy_cross_encoders[3], device="cpu")


class Plain:
    """An embedder without token vectors."""

    name, dim, fingerprint, max_tokens = "plain", 2, "plain", 100

    def count_tokens(self, text: str) -> int:
        return len(text.split())

    def embed_documents(self, texts: object) -> Vectors:
        pytest.fail("a reranker is named without embedding anything")

    def embed_queries(self, texts: object) -> Vectors:
        pytest.fail("a reranker is named without embedding anything")


def test_names_load_a_reranker_that_suits_the_embedder(
    words: HashEmbedder, toy_cross_encoders: dict[int, Path]
) -> None:
    assert isinstance(load_reranker("auto", words), MaxSimReranker)
    assert isinstance(load_reranker("maxsim", words), MaxSimReranker)
    assert load_reranker("auto", Plain()) is None
    assert load_reranker("none", words) is None
    assert load_reranker(None, words) is None
    assert isinstance(load_reranker(str(toy_cross_encoders[1]), words, device="cpu"), CrossEncoderReranker)
    own = MaxSimReranker(words)
    assert load_reranker(own, words) is own


@pytest.mark.parametrize(
    ("name", "message"),
    [("best", "No reranker is named 'best'; known are auto, maxsim"), ("maxsim", "the embedder plain has none")],
)
def test_a_name_that_does_not_fit_is_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_reranker(name, Plain())
