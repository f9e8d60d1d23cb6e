"""Keyword search: stems, rare words, tokens with signs, scripts without spaces, and equal texts in other characters."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from antiphon.retrieval import (
    HashEmbedder,
    Passage,
    Retriever,
    chunk_document,
    index_passages,
)
from antiphon.retrieval.formats.markup import read_markdown_document
from tests.retrieval.keyword_sets import KEYWORD_SETS


def words_index(folder: Path, *texts: str, titles: Sequence[str] = ()) -> Retriever:
    titles = titles or [""] * len(texts)
    passages = [
        Passage.at(f"{number}.txt", 0, text, {"title": title} if title else None)
        for number, (text, title) in enumerate(zip(texts, titles, strict=True))
    ]
    embedder = HashEmbedder()
    index_passages(passages, folder / "index", embedder)
    return Retriever.open(folder / "index", embedder=embedder, reranker=None)


def test_keywords_are_found_by_their_stems_in_texts_and_titles(tmp_path: Path) -> None:
    retriever = words_index(
        tmp_path, "Queens lay eggs.", "It hibernates.", "shutil.copytree(src, dst)", titles=("", "The laying hen", "")
    )
    found = retriever.index.keyword_search("Who LAYS an egg?", 5)
    assert [passage.source for passage in found] == ["0.txt", "1.txt"]
    assert all(passage.score is not None and passage.score > 0 for passage in found)
    assert [passage.source for passage in retriever.index.keyword_search("copytree", 5)] == ["2.txt"]
    assert len(retriever.index.keyword_search("lay hibernates copytree", 2)) == 2


def test_a_rare_word_ranks_its_passage_first(tmp_path: Path) -> None:
    texts = [f"The parameter number {number} is set by the user of the program." for number in range(30)]
    texts[17] = "The parameter dirs_exist_ok is set by the user of the program."
    retriever = words_index(tmp_path, *texts)
    question = "What does the number dirs_exist_ok do for the user?"
    dense = Retriever(retriever.index, retriever.embedder, fusion=None).search(question, 30)
    places = [
        [passage.source for passage in found].index("17.txt") for found in (dense, retriever.search(question, 30))
    ]
    assert places[0] > places[1]
    assert all(passage.score is not None and -1 <= passage.score <= 1 for passage in dense)


@pytest.mark.parametrize(
    ("token", "question"),
    [
        ("3.1.0", "What is new in 3.1.0?"),
        ("--no-cache-dir", "what does --no-cache-dir do"),
        ("os.path.join", "Where is os.path.join from?"),
        ("max_batch_size", "set max_batch_size"),
        ("setup.cfg", "Who reads setup.cfg?"),
    ],
)
def test_a_token_with_signs_is_found_as_a_whole(token: str, question: str, tmp_path: Path) -> None:
    parts = re.findall(r"[^\W_]+", token)
    texts = [f"This is about {' '.join(parts[::-1])} and {shown}, too." for shown in (" ".join(parts[::-1]), token)]
    found = words_index(tmp_path, *texts, "Bees dance.").index.keyword_search(question, 3)
    assert found[0].text == texts[1]


def test_function_words_are_searched_only_if_there_are_no_others(tmp_path: Path) -> None:
    retriever = words_index(tmp_path, "What is it and how do I do it in the?", "Bees dance in the hive.")
    assert [each.source for each in retriever.index.keyword_search("How do I dance in the?", 5)] == ["1.txt"]
    assert [each.source for each in retriever.index.keyword_search("What is it?", 5)] == ["0.txt"]


def test_parts_of_tokens_are_found(tmp_path: Path) -> None:
    retriever = words_index(tmp_path, "The cache is large.", "A batch has a size.", "Bees dance.")
    assert retriever.index.keyword_search("--no-cache-dir", 1)[0].text == "The cache is large."
    assert retriever.index.keyword_search("max_batch_size", 1)[0].text == "A batch has a size."
    assert retriever.index.keyword_search("2.1.3", 3) == []


def test_the_name_of_a_document_and_its_title_are_searched(tmp_path: Path) -> None:
    texts = [
        ("docs/libwax-doc/manual.html", "# Thread safety\n\nThe library is thread-safe if it is initialised once.", ""),
        ("docs/libhoney/manual.html", "# Thread safety\n\nThe library is thread-safe. It is thread-safe always.", ""),
        ("docs/other.html", "# Thread safety\n\nIt is thread-safe.", "The libpollen manual"),
    ]
    passages = [
        passage
        for source, text, title in texts
        for passage in chunk_document(
            replace(read_markdown_document(text.encode(), source), metadata={"title": title}),
            HashEmbedder().count_tokens,
        )
    ]
    index_passages(passages, tmp_path / "index", HashEmbedder())
    index = Retriever.open(tmp_path / "index", reranker=None).index
    for name, source in (("libwax", 0), ("libhoney", 1), ("libpollen", 2)):
        assert index.keyword_search(f"Is {name} thread-safe?", 3)[0].source == texts[source][0]


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
