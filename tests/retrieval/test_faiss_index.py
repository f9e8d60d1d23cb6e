"""The contract of trained indexes, checked for each setting: recall, order, files, threads, invalid input."""

from pathlib import Path

import numpy as np
import pytest

from antiphon.retrieval import (
    IndexCorrupt,
    IndexMismatch,
    build_vector_index,
    choose_setting,
)
from antiphon.retrieval.vector_index.build import LocalVectorIndex, describe_index
from antiphon.retrieval.vector_index.description import IndexDescription
from antiphon.retrieval.vector_index.files import open_vectors, read_vectors, write_vectors
from antiphon.retrieval.vector_index.flat import Vectors
from antiphon.retrieval.vector_index.settings import IndexSetting
from antiphon.retrieval.vector_index.training import ground_truth

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
