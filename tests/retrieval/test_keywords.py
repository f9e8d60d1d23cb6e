"""Keyword search in scripts without spaces, and for equal texts that are written with different characters."""

import unicodedata
from pathlib import Path

import pytest

from antiphon.retrieval import HashEmbedder, Passage, Retriever, index_passages
from tests.retrieval.keyword_sets import KEYWORD_SETS


def search(folder: Path, texts: list[str]) -> Retriever:
    passages = [Passage.at("all.txt", 10_000 * place, text, {"number": place}) for place, text in enumerate(texts)]
    index_passages(passages, folder / "index", HashEmbedder())
    return Retriever.open(folder / "index", reranker=None)


@pytest.fixture(scope="module")
def retriever(tmp_path_factory: pytest.TempPathFactory) -> Retriever:
    texts = [text for passages in KEYWORD_SETS.values() for text in passages]
    return search(tmp_path_factory.mktemp("languages"), texts)


@pytest.mark.parametrize("language", KEYWORD_SETS)
def test_questions_find_their_passage_by_keywords_in_every_language(language: str, retriever: Retriever) -> None:
    for passage, questions in KEYWORD_SETS[language].items():
        found = [retriever.index.keyword_search(question, 1) for question in questions]
        assert [hits[0].text for hits in found if hits] == [passage] * len(questions)


DECOMPOSED = unicodedata.normalize("NFD", "Zoë naïvely chose a piñata")


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("The eﬃcient ﬁlter ﬂoats.", "efficient filter"),
        ("Ｔｈｅ ｃｏｄｅ ｉｓ ＡＢＣ１２３．", "code abc123"),
        (DECOMPOSED, "piñata"),
        (unicodedata.normalize("NFC", DECOMPOSED), unicodedata.normalize("NFD", "piñata")),
        (unicodedata.normalize("NFD", "회의실은 두 시간까지"), "회의실을"),
        ("ｶﾞｲﾄﾞを読む", "ガイド"),
        ("Python™ is a language.", "python"),
    ],
)
def test_equal_texts_in_other_characters_are_found(text: str, question: str, tmp_path: Path) -> None:
    retriever = search(tmp_path, ["Something else entirely.", text])
    hits = retriever.index.keyword_search(question, 1)
    assert [hit.text for hit in hits] == [text], "the passage keeps its own characters"
