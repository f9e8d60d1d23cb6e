"""The contract of collections, checked for each kind: index folders, and tables of PostgreSQL."""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from antiphon.retrieval import (
    Collection,
    HashEmbedder,
    IndexMismatch,
    MetadataFilter,
    Passage,
    PostgresIndex,
    Retriever,
    index_passages,
)
from antiphon.retrieval.vector_index.flat import Vectors
from tests.retrieval.servers import table_address

pytestmark = pytest.mark.slow

DIM = 16
EMBEDDER = HashEmbedder(DIM)
OTHER = HashEmbedder(DIM * 2)
NAMES = (f"passages_{number}" for number in itertools.count())
Opener = Callable[[str, HashEmbedder], Collection]
"""Opens the collection with a name, and creates it if it does not exist."""


def drawn(count: int, seed: int) -> Vectors:
    vectors = np.random.default_rng(seed).standard_normal((count, DIM)).astype(np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


ANIMALS = ("cat", "dog", "owl", "fox", "bee")
PASSAGES = [
    Passage.at(
        f"file{number % 7}.txt",
        10 * number,
        f"The {ANIMALS[number % 5]} number {number} sleeps in the house.",
        {"lang": "en" if number % 2 else "de", "title": f"Part {number % 3}"},
    )
    for number in range(120)
]
VECTORS, QUERIES = drawn(120, 1), drawn(12, 2)


def folder(root: Path, setting: str) -> Opener:
    def open_(name: str, embedder: HashEmbedder) -> Collection:
        if not (root / name).exists():
            first = [Passage.at("", 0, f"first {number}") for number in range(20)]
            index_passages(first, root / name, embedder, setting=setting)
            Retriever.open(root / name, embedder=embedder).remove([passage.id for passage in first])
        index = Retriever.open(root / name, embedder=embedder).index
        assert isinstance(index, Collection)
        return index

    return open_


ENGINES = ("folder", "compact folder", "postgres")


@pytest.fixture(scope="module", params=ENGINES)
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Opener:
    root = tmp_path_factory.mktemp("engine")
    if request.param == "postgres":
        server = request.getfixturevalue("postgres_server")
        return lambda name, embedder: PostgresIndex(table_address(server, name), embedder)
    return folder(root, "compact" if "compact" in request.param else "auto")


@pytest.fixture
def empty(opened: Opener) -> Collection:
    return opened(next(NAMES), EMBEDDER)


@pytest.fixture(scope="module")
def full(opened: Opener) -> Collection:
    index = opened(next(NAMES), EMBEDDER)
    index.upsert(PASSAGES, VECTORS)
    return index


def exact(query: Vectors, k: int, where: MetadataFilter | None = None) -> list[tuple[str, float]]:
    def value(passage: Passage, name: str) -> str | None:
        return passage.source if name == "source" else passage.metadata.get(name)

    allowed = [
        row for row, passage in enumerate(PASSAGES) if all(value(passage, n) == v for n, v in (where or {}).items())
    ]
    best = sorted(allowed, key=lambda row: -float(VECTORS[row] @ query))[:k]
    return [(PASSAGES[row].id, float(VECTORS[row] @ query)) for row in best]


WHERE: list[MetadataFilter | None] = [
    None,
    {"lang": "de"},
    {"source": "file3.txt"},
    {"lang": "en", "source": "file3.txt"},
]


@pytest.mark.parametrize("where", [*WHERE, {"title": "Part 1", "lang": "de"}, {"lang": "fr"}, {"nobody": "said"}, {}])
def test_the_nearest_allowed_passages_are_found_with_their_cosines(
    full: Collection, where: MetadataFilter | None
) -> None:
    for query in QUERIES:
        found = full.vector_search(query, 7, where)
        expected = exact(query, 7, where)
        assert [passage.id for passage in found] == [identifier for identifier, _ in expected]
        assert [passage.score for passage in found] == pytest.approx([score for _, score in expected], abs=2e-3)
    assert len(full) == len(PASSAGES)


def test_keywords_are_found(full: Collection) -> None:
    found = full.keyword_search("Where is owl 57?", 5)
    assert "number 57 " in found[0].text
    assert all("owl" in passage.text or "57" in passage.text for passage in found)
    scores = [passage.score or 0.0 for passage in found]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > 0
    allowed = full.keyword_search("Where is the owl?", 50, {"lang": "de", "source": "file3.txt"})
    assert {(p.metadata["lang"], p.source, "owl" in p.text) for p in allowed[:1]} == {("de", "file3.txt", True)}


@pytest.mark.parametrize("question", ["?!", "'); drop table passages; --", '" OR "a', "   ", "the", "a:* & | <-> !"])
def test_no_question_breaks_the_keyword_search(full: Collection, question: str) -> None:
    assert len(full.keyword_search(question, 3)) <= 3
    assert len(full) == len(PASSAGES)


def test_upsert_replaces_and_remove_deletes(empty: Collection) -> None:
    assert (len(empty), empty.vector_search(QUERIES[0], 3), empty.keyword_search("cat", 3)) == (0, [], [])
    empty.upsert(PASSAGES[:40], VECTORS[:40])
    empty.upsert([replace(PASSAGES[3], text="A new zebra.", metadata={"lang": "fr"}), *PASSAGES[40:50]], -VECTORS[3:14])
    assert len(empty) == 50
    best = empty.vector_search(-VECTORS[3], 1)[0]
    assert (best.id, best.text, best.metadata) == (PASSAGES[3].id, "A new zebra.", {"lang": "fr"})
    assert [passage.id for passage in empty.keyword_search("zebra", 9)] == [PASSAGES[3].id]
    assert all(passage.id != PASSAGES[3].id for passage in empty.keyword_search("owl number 3", 9))
    empty.remove([PASSAGES[3].id, "nobody", PASSAGES[45].id])
    empty.remove([])
    assert len(empty) == 48
    assert {p.id for p in empty.vector_search(QUERIES[0], 100)} == {p.id for p in PASSAGES[:50]} - {
        PASSAGES[3].id,
        PASSAGES[45].id,
    }
    assert empty.vector_search(QUERIES[0], 5, {"lang": "fr"}) == []
    assert empty.keyword_search("zebra", 9) == []


def test_the_last_of_equal_ids_in_one_call_wins(empty: Collection) -> None:
    empty.upsert([PASSAGES[0], PASSAGES[1], replace(PASSAGES[0], text="last")], VECTORS[:3])
    assert len(empty) == 2
    assert empty.vector_search(VECTORS[2], 1)[0].text == "last"


def test_values_are_never_interpreted_as_code(empty: Collection) -> None:
    nasty = ["it's", 'say "no"', "back\\slash", "{brace}", "%s", "new\nline", "žluťoučký 🐎", "metadata['x']", ""]
    passages = [Passage.at(f"{text}.txt", 0, f"Text {text}", {"Käse '\"": text}) for text in nasty]
    empty.upsert(passages, VECTORS[: len(nasty)])
    for text, passage in zip(nasty, passages, strict=True):
        for where in ({"Käse '\"": text}, {"source": f"{text}.txt"}):
            assert [replace(found, score=None) for found in empty.vector_search(QUERIES[0], 9, where)] == [passage]
        empty.keyword_search("text", 5, {"Käse '\"": text})


def test_invalid_input_is_refused_and_changes_nothing(empty: Collection) -> None:
    empty.upsert(PASSAGES[:2], VECTORS[:2])
    for vectors in (VECTORS[:1], VECTORS[:2, :5], np.full((2, DIM), np.nan, np.float32)):
        with pytest.raises(ValueError, match=r"each passage needs one|is needed|not a number"):
            empty.upsert(PASSAGES[:2], vectors)
    with pytest.raises(TypeError, match="where has the name 3; names of metadata are texts"):
        empty.vector_search(QUERIES[0], 3, {3: "page"})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="k is 0"):
        empty.vector_search(QUERIES[0], 0)
    with pytest.raises(ValueError, match="is needed"):
        empty.vector_search(QUERIES[0][:5], 3)
    assert len(empty) == 2


def test_a_reopened_collection_keeps_its_passages_and_refuses_another_embedder(opened: Opener) -> None:
    name = next(NAMES)
    first = opened(name, EMBEDDER)
    first.upsert(PASSAGES[:30], VECTORS[:30])
    again = opened(name, EMBEDDER)
    assert {passage.id for passage in again.vector_search(QUERIES[0], 50)} == {passage.id for passage in PASSAGES[:30]}
    with pytest.raises(IndexMismatch, match=r"hash:words:16.*which is not.*hash:words:32"):
        opened(name, OTHER)
    right = opened(name, EMBEDDER)
    assert len(right) == 30


def test_a_retriever_finds_the_same_in_every_collection(empty: Collection) -> None:
    retriever = Retriever(empty, EMBEDDER, fusion=None)
    retriever.add(PASSAGES[:60])
    texts = EMBEDDER.embed_documents([passage.text_with_headings for passage in PASSAGES[:60]])
    for question in ("Which owl is number 7?", "the fox 33"):
        scores = texts @ EMBEDDER.embed_queries([question])[0]
        found = retriever.search(question, 5)
        assert [passage.score for passage in found] == pytest.approx(sorted(scores, reverse=True)[:5], abs=2e-3)
        for passage in Retriever(empty, EMBEDDER).search(question, 5, where={"lang": "de"}):
            assert passage.metadata["lang"] == "de"
    retriever.remove([passage.id for passage in PASSAGES[:59]])
    assert [passage.id for passage in retriever.search("owl", 5)] == [PASSAGES[59].id]


def test_threads_may_search_at_once(full: Collection) -> None:
    expected = [exact(query, 5) for query in QUERIES]
    with ThreadPoolExecutor(len(QUERIES)) as pool:
        found = list(pool.map(lambda query: full.vector_search(query, 5), QUERIES))
    assert [[passage.id for passage in each] for each in found] == [[name for name, _ in each] for each in expected]
