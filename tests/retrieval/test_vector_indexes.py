"""The contract of vector indexes, flat and of FAISS: sorted results, recall, invalid vectors refused."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.retrieval import (
    FlatIndex,
    IndexCorrupt,
    IndexMismatch,
    build_vector_index,
    choose_setting,
)
from antiphon.retrieval.vector_index.build import LocalVectorIndex, describe_index
from antiphon.retrieval.vector_index.description import IndexDescription
from antiphon.retrieval.vector_index.files import open_vectors, read_vectors, write_vectors
from antiphon.retrieval.vector_index.flat import Vectors, normalized
from antiphon.retrieval.vector_index.settings import IndexSetting
from antiphon.retrieval.vector_index.training import ground_truth

Index = Callable[[Vectors], LocalVectorIndex]
INDEXES: dict[str, Index] = {"flat": FlatIndex, "chosen": build_vector_index}
COMPACT: dict[str, Index] = {"compact": partial(build_vector_index, setting="compact")}
every_index = pytest.mark.parametrize("index", INDEXES.values(), ids=INDEXES)


def random_vectors(count: int, dim: int = 16, seed: int = 0) -> Vectors:
    return np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)


@every_index
@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60), st.integers(1, 70), st.integers(0, 1000))
def test_hits_are_the_exact_best_in_order(index: Index, count: int, k: int, seed: int) -> None:
    vectors, queries = random_vectors(count, seed=seed), random_vectors(3, seed=seed + 1)
    exact = normalized(queries).astype(np.float64) @ normalized(vectors).T.astype(np.float64)
    hits = index(vectors).search(queries, k)
    for row, hit in zip(exact, hits, strict=True):
        assert hit.rows.tolist() == np.argsort(-row)[:k].tolist()
        assert np.allclose(hit.scores, row[hit.rows], atol=1e-5)
        assert hit.rows.dtype == np.int64
        assert hit.scores.dtype == np.float32


@every_index
def test_scores_are_cosines_whatever_the_lengths(index: Index) -> None:
    made = index(np.array([[3, 4], [0, 1e-12], [-1e12, 0]], np.float32))
    hits = made.search(np.array([[1e6, 0]], np.float32), 3)[0]
    assert hits.rows.tolist() == [0, 1, 2]
    assert np.allclose(hits.scores, [0.6, 0, -1])
    assert (len(made), made.dim) == (3, 2)


def test_equal_scores_keep_the_order_of_rows() -> None:
    made = FlatIndex(np.repeat(random_vectors(1), 40, axis=0))
    assert made.search(random_vectors(1), 7)[0].rows.tolist() == list(range(7))


BAD = {
    "a list": ([[1.0, 2.0]], TypeError, "vectors are list; a numpy array of floats is needed."),
    "integers": (np.ones((2, 4), int), TypeError, "vectors are int64; a numpy array of floats is needed."),
    "one dimension": (np.ones(4, np.float32), ValueError, r"vectors have shape \(4,\); \(n, "),
    "another dimension": (np.ones((2, 5), np.float32), ValueError, r"vectors have shape \(2, 5\); \(n, 4\) is needed."),
    "not a number": (
        np.array([[1, 1, 1, 1], [1, np.nan, 1, 1]]),
        ValueError,
        "Vector 1 is infinite or not a number; 1",
    ),
    "infinite": (np.array([[np.inf, 1, 1, 1]]), ValueError, "Vector 0 is infinite or not a number; 1 of 1 are such."),
    "zero": (np.zeros((2, 4), np.float32), ValueError, "Vector 0 is of length 0; 2 of 2 are such."),
}


@pytest.mark.parametrize("index", [*INDEXES.values(), *COMPACT.values()], ids=[*INDEXES, *COMPACT])
@pytest.mark.parametrize("case", BAD)
def test_invalid_vectors_are_refused_as_content_and_as_queries(index: Index, case: str) -> None:
    vectors, error, message = BAD[case]
    made = index(random_vectors(20, 4))
    with pytest.raises(error, match=message):
        made.search(vectors, 1)  # type: ignore[arg-type]
    if case != "another dimension":
        with pytest.raises(error):
            index(vectors)  # type: ignore[arg-type]


@every_index
@pytest.mark.parametrize("k", [0, -1, 1.5, True, None])
def test_k_must_be_an_integer_from_one(index: Index, k: object) -> None:
    with pytest.raises(ValueError, match=f"k is {k!r}; the number of hits is a whole number from 1."):
        index(random_vectors(5)).search(random_vectors(1), k)  # type: ignore[arg-type]


DIM = 64
FLOORS = {  # minimum recall@100 with the chosen number of probes
    "flat": 1.0,
    "compact": 0.95,
    "unrotated": 0.75,
}
UNROTATED = IndexSetting("unrotated", "IVF16,PQ32x6", lists=16)


def clustered(count: int, seed: int = 0) -> Vectors:
    """Vectors in clusters of 50, with a falling spectrum."""
    draw = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((40, DIM))
    vectors = centres[draw.integers(40, size=count)] + 0.6 * draw.standard_normal((count, DIM))
    scaled: Vectors = (vectors * np.arange(1, DIM + 1) ** -0.6).astype(np.float32)
    return np.asarray(scaled / np.linalg.norm(scaled, axis=1, keepdims=True), np.float32)


VECTORS, QUERIES = clustered(2000), clustered(40, seed=1)


@pytest.fixture(scope="module")
def made() -> dict[str, LocalVectorIndex]:
    """Every setting, trained once."""
    return {name: build_vector_index(VECTORS, setting_named(name)) for name in FLOORS}


def setting_named(name: str) -> IndexSetting:
    return UNROTATED if name == "unrotated" else choose_setting(name, *VECTORS.shape)


@pytest.fixture(params=FLOORS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def saved(index: LocalVectorIndex, name: str, folder: Path) -> IndexDescription:
    write_vectors(folder, index)
    return describe_index(index, setting_named(name))


def opened(folder: Path, description: IndexDescription) -> LocalVectorIndex:
    return open_vectors(folder, read_vectors(folder), description)


@pytest.mark.slow
def test_recall_reaches_the_floor_of_each_setting(made: dict[str, LocalVectorIndex], name: str) -> None:
    truth = ground_truth(VECTORS, 0, queries=QUERIES)
    description = describe_index(made[name], setting_named(name))
    assert truth.recalls(made[name].search, 100)[0] >= FLOORS[name]
    assert description.recall_100 >= FLOORS[name]
    assert abs(truth.recalls(made[name].search, 100)[0] - description.recall_100) < 0.05
    assert (len(made[name]), made[name].dim) == VECTORS.shape


@pytest.mark.slow
def test_hits_are_sorted_distinct_and_never_row_minus_one(made: dict[str, LocalVectorIndex], name: str) -> None:
    for k in (1, 7, 1000, 5000):
        for hits in made[name].search(QUERIES[:5], k):
            assert 0 < len(hits.rows) <= min(k, len(VECTORS))
            assert len(set(hits.rows.tolist())) == len(hits.rows)
            assert hits.rows.min() >= 0
            assert np.all(np.diff(hits.scores) <= 0)
            assert hits.rows.dtype == np.int64
            assert hits.scores.dtype == np.float32


@pytest.mark.slow
def test_an_index_finds_the_same_after_saving_and_opening(
    made: dict[str, LocalVectorIndex], name: str, tmp_path: Path
) -> None:
    again = opened(tmp_path, saved(made[name], name, tmp_path))
    before, after = made[name].search(QUERIES, 50), again.search(QUERIES, 50)
    assert (len(again), again.dim) == VECTORS.shape
    for one, other in zip(before, after, strict=True):
        assert np.allclose(one.scores, other.scores, atol=1e-3), "float16 vectors are scored after opening"
        assert len(np.intersect1d(one.rows, other.rows)) >= 0.96 * len(one.rows)
    if name not in ("compact",):
        assert all(np.array_equal(one.rows, other.rows) for one, other in zip(before, after, strict=True))


@pytest.mark.slow
def test_the_same_vectors_give_the_same_index(made: dict[str, LocalVectorIndex]) -> None:
    again = build_vector_index(VECTORS, "compact").search(QUERIES, 100)
    for one, other in zip(made["compact"].search(QUERIES, 100), again, strict=True):
        assert np.array_equal(one.rows, other.rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "count", "message"),
    [
        ("rubbish", 100, "There is no setting 'rubbish' of the vector index; choose auto, flat, compact."),
        ("compact", 15, "'compact' is trained on 16 vectors at least, and there are 15; use the setting 'auto'"),
    ],
)
def test_an_impossible_setting_is_refused_before_training(setting: str, count: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_vector_index(VECTORS[:count], setting)


@pytest.mark.slow
def test_files_that_do_not_belong_together_are_refused(made: dict[str, LocalVectorIndex], tmp_path: Path) -> None:
    description = saved(made["compact"], "compact", tmp_path)
    with pytest.raises(IndexCorrupt, match=r"ann\.faiss has 2000 vectors of 64 numbers, not \(1999, 64\)"):
        open_vectors(tmp_path, VECTORS[:-1], description)
    (tmp_path / "ann.faiss").write_bytes(b"none of FAISS's")
    with pytest.raises(IndexMismatch, match=r"was written by FAISS 1\..*cannot read it"):
        opened(tmp_path, description)
    (tmp_path / "vectors.f16.npy").unlink()
    with pytest.raises(IndexCorrupt, match="holds no vectors"):
        read_vectors(tmp_path)


@pytest.mark.parametrize(
    ("count", "dim", "factory"),
    [
        (1, 1, "Flat"),
        (48_828, 1024, "Flat"),
        (48_829, 1024, "IVF1024,PQ128x4fsr"),
        (130_208, 384, "Flat"),
        (200_000, 384, "IVF2048,PQ128x4fsr"),
        (1_000_000, 1024, "IVF4096,PQ128x4fsr"),
        (10_000_000, 1024, "IVF16384_HNSW32,PQ128x4fsr"),
        (100_000_000, 1024, "IVF32768_HNSW32,PQ128x4fsr"),
        (1_000_000, 100, "IVF4096,PQ50x4fsr"),
        (1_000_000, 99, "IVF4096,PQ49x4fsr"),
    ],
)
def test_auto_is_flat_while_small_and_compact_above(count: int, dim: int, factory: str) -> None:
    setting = choose_setting("auto", count, dim)
    assert setting.factory == factory
    assert setting.is_flat == (count * dim <= 50_000_000)
    if not setting.is_flat:
        assert (setting.rotated, setting.probes, setting.rescored) == (min(256, dim - dim % 2), None, 3)
