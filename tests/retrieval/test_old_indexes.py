"""Indexes of version 0.1, made by its own code: today's code opens, searches and changes them."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from antiphon.retrieval import (
    HashEmbedder,
    LocalIndex,
    Passage,
    Retriever,
    read_index,
)

DATA = Path(__file__).with_name("data") / "indexes_0_1.tar.gz"
"""Two indexes of the same documents; they were made with ``build_index`` and ``Retriever.add`` of version 0.1."""

SOURCES = {"guide/bees.txt": 1, "guide/keys.md": 2, "guide/limits.html": 1, "uploaded/visit.txt": 1}
EMBEDDER = HashEmbedder(64)


@pytest.fixture
def indexes(tmp_path: Path) -> Path:
    with tarfile.open(DATA) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.fixture
def old(indexes: Path) -> Retriever:
    return Retriever.open(indexes / "hash", embedder=EMBEDDER, reranker=None)


def local(retriever: Retriever) -> LocalIndex:
    assert isinstance(retriever.index, LocalIndex)
    return retriever.index


def test_an_old_index_is_read_without_a_loss(indexes: Path) -> None:
    store = read_index(indexes / "hash")
    assert store.passages.sources() == SOURCES
    texts = [passage.text for passage in store.passages]
    assert any("Größere Völker überleben öfter." in text for text in texts)
    assert (store.vectors == EMBEDDER.embed_documents([each.text_with_headings for each in store.passages])).all()


@pytest.mark.parametrize(
    ("question", "source"),
    [
        ("How often are keys rotated?", "guide/keys.md"),
        ("What do bees dance for?", "guide/bees.txt"),
        ("Where do visitors sign?", "uploaded/visit.txt"),
    ],
)
def test_an_old_index_is_searched(old: Retriever, question: str, source: str) -> None:
    assert old.search(question, 1)[0].source == source
    assert local(old).keyword_search(question, 1)[0].source == source


def test_a_change_keeps_old_documents_and_gives_them_the_new_keyword_search(old: Retriever, indexes: Path) -> None:
    before = list(read_index(indexes / "hash").passages)
    assert local(old).keyword_search("visit.txt", 1) == [], "version 0.1 did not search the names of files"
    old.add([Passage.at("uploaded/new.txt", 0, "Bread is baked at six.")])
    assert list(read_index(indexes / "hash").passages)[:-1] == before
    assert local(old).keyword_search("visit.txt", 1)[0].source == "uploaded/visit.txt"
    old.remove([each.id for each in before if each.source == "guide/bees.txt"])
    assert set(local(old).sources()) == {*SOURCES, "uploaded/new.txt"} - {"guide/bees.txt"}
