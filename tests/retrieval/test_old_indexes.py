"""Indexes of version 0.1, made by its own code: today's code opens, searches and changes them."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from antiphon.retrieval import (
    HashEmbedder,
    IndexMismatch,
    LocalIndex,
    MiniLMEmbedder,
    Passage,
    Retriever,
    build_index,
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


def test_files_are_added_to_an_old_index(indexes: Path, tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("Lamps are lit at dusk.")
    report = build_index([tmp_path / "more.txt"], indexes / "hash", embedder=EMBEDDER, add=True)
    assert (report.passages, report.kept) == (1, 5)
    assert set(SOURCES) < set(read_index(indexes / "hash").passages.sources())


def test_the_bundled_embedder_still_fits_its_old_indexes(indexes: Path) -> None:
    store = read_index(indexes / "minilm")
    assert (store.embedder, store.fingerprint) == ("minilm", MiniLMEmbedder.fingerprint)
    assert store.vectors.shape == (5, 384)


def test_an_index_of_a_newer_version_is_refused_with_the_remedy(indexes: Path) -> None:
    generation = read_index(indexes / "hash").files
    content = json.dumps({**json.loads((generation / "manifest.json").read_bytes()), "format": 4}).encode()
    (generation / "manifest.json").write_bytes(content)
    (indexes / "hash" / "CURRENT").write_text(f"{generation.name} {hashlib.sha256(content).hexdigest()}\n")
    with pytest.raises(IndexMismatch, match="this version reads format 3: it was made by a newer version of Antiphon"):
        read_index(indexes / "hash")
