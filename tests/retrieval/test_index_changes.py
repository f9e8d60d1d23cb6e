"""Changes of index folders, compared with a dictionary and exact search, also under kill -9."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from antiphon.retrieval import (
    Collection,
    FaissIndex,
    HashEmbedder,
    IndexMismatch,
    MaxSimReranker,
    Passage,
    Retriever,
    build_vector_index,
    index_passages,
    read_index,
    update_index,
)
from antiphon.retrieval.vector_index import faiss_index
from antiphon.retrieval.vector_index.flat import FlatIndex, Vectors
from antiphon.retrieval.vector_index.training import ground_truth
from tests.retrieval.test_vector_indexes import FLOORS, QUERIES, VECTORS, setting_named
from tests.table_part import part

pytestmark = pytest.mark.slow

DIM = 64
EMBEDDER = HashEmbedder(DIM)
COUNT = 280
SETTINGS = ("flat", "compact")


def passage(number: int, version: int = 0) -> Passage:
    lang = ("en", "de", "fr")[(number + version) % 3]
    return replace(
        Passage.at(f"file{number % 11}", number, f"Passage {number}, version {version}.", {"lang": lang}),
        id=f"p{number}",
    )


def vector(number: int, version: int = 0) -> Vectors:
    drawn = np.random.default_rng([number, version]).standard_normal(DIM).astype(np.float32)
    return np.asarray(drawn / np.linalg.norm(drawn), np.float32)


ALL = [passage(number) for number in range(COUNT)]
Content = dict[str, tuple[Passage, Vectors]]


class Given(HashEmbedder):
    """Embeds each text that `passage` makes as the vector that `vector` gives for the same number."""

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        numbers = [
            [int(word) for word in text.rstrip(".").replace(",", "").split() if word.isdigit()] for text in texts
        ]
        return np.array([vector(*pair) for pair in numbers], np.float32).reshape(-1, DIM)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("built")
    for setting in SETTINGS:
        index_passages(ALL, root / setting, Given(DIM), setting=setting)
    return root


CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.lists(st.integers(0, COUNT + 40), max_size=9), st.integers(0, 3)),
        st.tuples(st.just("remove"), st.lists(st.integers(0, COUNT + 40), max_size=60), st.just(0)),
        st.tuples(st.just("most"), st.just([]), st.integers(1, 5)),
    ),
    min_size=1,
    max_size=4,
)


def change(index: Collection, content: Content, kind: str, numbers: list[int], version: int) -> None:
    if kind == "put":
        new = [passage(number, version) for number in numbers]
        vectors = np.array([vector(number, version) for number in numbers], np.float32).reshape(-1, DIM)
        index.upsert(new, vectors)
        content.update({each.id: (each, one) for each, one in zip(new, vectors, strict=True)})
        return
    gone = [f"p{number}" for number in numbers] if kind == "remove" else list(content)[version:]
    index.remove(gone)
    for identifier in gone:
        content.pop(identifier, None)


def check(index: Collection, content: Content, setting: str) -> None:
    assert len(index) == len(content)
    for query, where in ((vector(7, 9), None), (vector(3), {"lang": "de"}), (vector(5), {"source": "file5"})):
        wanted = [
            (one, v)
            for one, v in content.values()
            if where is None or {**one.metadata, "source": one.source}.items() >= where.items()
        ]
        exact = sorted((float(v @ query) for _, v in wanted), reverse=True)[:6]
        found = index.vector_search(query, 6, where)
        assert len({hit.id for hit in found}) == len(found)
        for hit in found:
            known, its_vector = content[hit.id]
            assert replace(hit, score=None) == known, "never another passage, never an old version"
            if setting in ("flat", "compact") or where:
                assert hit.score == pytest.approx(float(its_vector @ query), abs=2e-3)
        if setting == "flat" or where:
            assert [hit.score for hit in found] == pytest.approx(exact, abs=2e-3), "exact, whatever the index"
            assert {hit.id for hit in found} <= {one.id for one, _ in wanted}


@pytest.mark.parametrize("setting", part(SETTINGS, ("flat", "compact")))
@examples(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(changes=CHANGES)
def test_upserts_and_removals_in_any_order_match_a_dictionary(
    built: Path, tmp_path_factory: pytest.TempPathFactory, setting: str, changes: list[tuple[str, list[int], int]]
) -> None:
    folder = tmp_path_factory.mktemp("changed") / "index"
    shutil.copytree(built / setting, folder)
    content: Content = {one.id: (one, vector(number)) for number, one in enumerate(ALL)}
    index = Retriever.open(folder, embedder=EMBEDDER).index
    assert isinstance(index, Collection)
    for kind, numbers, version in changes:
        change(index, content, kind, numbers, version)
        check(index, content, setting)
    again = Retriever.open(folder, embedder=EMBEDDER)
    assert isinstance(again.index, Collection)
    check(again.index, content, setting)
    assert [one.id for one in read_index(folder).passages] == list(
        dict.fromkeys(one.id for one in read_index(folder).passages)
    )
    if content:
        assert again.search("passage 7", 3)
    shutil.rmtree(folder)


def test_only_new_texts_are_embedded_and_keywords_and_token_counts_follow(tmp_path: Path) -> None:
    embedded: list[str] = []

    class Watching(HashEmbedder):
        def embed_documents(self, texts: Sequence[str]) -> Vectors:
            embedded.extend(texts)
            return super().embed_documents(texts)

    watching = Watching(DIM)
    index_passages(ALL[:30], tmp_path / "index", watching)
    del embedded[:]
    moved = replace(ALL[4], id="moved")
    update_index(tmp_path / "index", watching, upsert=[passage(50), moved, passage(3, 1)], remove=["p1", "p9"])
    assert sorted(embedded) == sorted([passage(50).text, passage(3, 1).text])
    store = read_index(tmp_path / "index")
    index_passages(list(store.passages), tmp_path / "anew", watching)
    anew = read_index(tmp_path / "anew")
    assert store.token_counts is not None
    assert anew.token_counts is not None
    assert np.array_equal(store.token_counts, anew.token_counts)
    retriever = Retriever.open(tmp_path / "index", embedder=watching, reranker=MaxSimReranker(watching))
    assert [hit.id for hit in retriever.index.keyword_search("50", 3)] == ["p50"]
    assert retriever.index.keyword_search("9", 3) == []


def test_a_change_of_an_outdated_index_is_refused_and_loses_nothing(tmp_path: Path) -> None:
    class Slow(HashEmbedder):
        def embed_documents(self, texts: Sequence[str]) -> Vectors:
            update_index(tmp_path, EMBEDDER, upsert=[passage(99)])
            return super().embed_documents(texts)

    index_passages(ALL[:5], tmp_path, EMBEDDER)
    with pytest.raises(BlockingIOError, match=r"Another process has changed the index in .* meanwhile; try again"):
        update_index(tmp_path, Slow(DIM), upsert=[passage(77)])
    assert [one.id for one in read_index(tmp_path).passages] == ["p0", "p1", "p2", "p3", "p4", "p99"]
    with pytest.raises(IndexMismatch, match=r"\(hash:words:64\), which is not hash \(hash:words:128\)"):
        update_index(tmp_path, HashEmbedder(128), upsert=[passage(77)])


@pytest.mark.parametrize("setting", part(FLOORS, ("compact",)))
def test_a_filtered_search_finds_only_allowed_rows(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    index = build_vector_index(VECTORS, setting_named(setting))
    allowed = np.arange(len(VECTORS)) % 3 == 1
    truth = ground_truth(VECTORS[allowed], 0, queries=QUERIES)
    if isinstance(index, FaissIndex):
        exactly = index.search(QUERIES, 9, allowed)
        for one, other in zip(exactly, FlatIndex(VECTORS).search(QUERIES, 9, allowed), strict=True):
            assert one.rows.tolist() == other.rows.tolist()
    monkeypatch.setattr(faiss_index, "EXACT_ROWS", 0)  # the filtered search uses the FAISS index
    hits = index.search(QUERIES, 100, allowed)
    assert all(allowed[hit.rows].all() and len(hit.rows) for hit in hits)
    renumbered = np.cumsum(allowed) - 1
    [recall] = truth.recalls(lambda queries, k: [replace(hit, rows=renumbered[hit.rows]) for hit in hits], 100)
    assert recall >= FLOORS[setting] - 0.1
    few = np.zeros(len(VECTORS), np.bool_)
    few[[3, 500]] = True
    assert all(set(hit.rows.tolist()) <= {3, 500} for hit in index.search(QUERIES, 100, few))


KILLED = """
import os, signal, sys, time
from pathlib import Path
import torch, faiss
from tests.retrieval.killed_changes import CHANGES

folder, kind, deaths = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

def run(place, seconds):
    child = os.fork()
    if not child:
        CHANGES[kind](folder / place)
        os._exit(0)
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        if os.waitpid(child, os.WNOHANG)[0]:
            return time.monotonic() - began
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None

run("0", 300)
took = run("1", 300)  # the second run, because all files are in the page cache by then
for number in range(2, deaths):
    print(run(str(number), took * number / deaths))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
@pytest.mark.parametrize("kind", part(("build", "add", "remove"), ("add",)))
def test_after_a_kill_at_any_time_the_old_or_the_new_index_loads(tmp_path: Path, built: Path, kind: str) -> None:
    deaths = 11
    for number in range(deaths):
        shutil.copytree(built / "compact", tmp_path / str(number))
    command = [sys.executable, "-c", KILLED, str(tmp_path), kind, str(deaths)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert told.count("None") >= 3, "some of them were killed"
    counts = {"build": 600, "add": COUNT + 300, "remove": COUNT - 200}
    found = []
    for number in range(deaths):
        store = read_index(tmp_path / str(number))
        index = Retriever.open(tmp_path / str(number), embedder=EMBEDDER).index
        last = store.passages[len(store.passages) - 1]
        assert index.vector_search(vector(int(last.id[1:])), 1)[0].id == last.id
        found.append(len(store.passages))
    assert set(found) <= {COUNT, counts[kind]}
    assert found[:2] == [counts[kind]] * 2, "whoever is left alone changes it"
    assert COUNT in found
    for number in range(deaths):
        update_index(tmp_path / str(number), Given(DIM), upsert=[passage(5000)])
        assert not list((tmp_path / str(number)).glob(".tmp-*")), "what the killed left behind is cleared away"


def test_duplicate_ids_are_refused_before_anything_is_embedded(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2 passages have the id p3; each needs one of its own"):
        index_passages([*ALL[:5], passage(3, 1)], tmp_path, EMBEDDER)
    assert not list(tmp_path.iterdir())
