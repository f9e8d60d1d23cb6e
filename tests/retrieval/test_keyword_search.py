"""Keyword search: a question is never query syntax, and rare words rank a passage higher."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from antiphon.retrieval import (
    HashEmbedder,
    Passage,
    Retriever,
    index_passages,
)


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


@pytest.mark.parametrize("question", ['"', "' OR 1=1 --", "NEAR(a b)", "*", "a AND", "?!", "title:x", "日本語", "\x00"])
def test_a_question_is_never_interpreted_as_query_syntax(tmp_path: Path, question: str) -> None:
    assert words_index(tmp_path, "Queens lay eggs.").index.keyword_search(question, 5) == []


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
