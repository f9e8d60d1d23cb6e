"""The vector index benchmark: synthetic and real vectors, held-out queries, and figures of the saved indexes."""

from pathlib import Path

import numpy as np
import pytest

from antiphon.pipelines.benchmark import indexing, vector_sets
from antiphon.retrieval import HashEmbedder


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure each speed with a single search, because no test checks speed."""
    monkeypatch.setattr(indexing, "_SECONDS", 0.0)


def test_synthetic_vectors_are_of_length_1_in_clusters_with_a_falling_spectrum() -> None:
    vectors = vector_sets.synthetic_vectors(2000, 64)
    assert vectors.shape == (2000, 64)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    spread = vectors.std(axis=0)
    assert spread[:4].mean() / spread[-4:].mean() == pytest.approx((2.5 / 62.5) ** -0.6, rel=0.35)
    nearest = np.sort(vectors @ vectors[0])[-2]
    assert nearest > 0.5, "a vector has neighbours"
    assert np.array_equal(vectors, vector_sets.synthetic_vectors(2000, 64))
    with pytest.raises(ValueError, match="0 vectors of dimension 64 were asked for; both need to be at least 1"):
        vector_sets.synthetic_vectors(0, 64)


def test_queries_are_held_out() -> None:
    vectors = vector_sets.synthetic_vectors(100, 8)
    before = {row.tobytes() for row in vectors}
    searched, asked = vector_sets.held_out(vectors, 10)
    assert (len(searched), len(asked)) == (90, 10)
    assert {row.tobytes() for row in np.concatenate([searched, asked])} == before
    for count in (0, 100):
        with pytest.raises(ValueError, match=f"{count} queries cannot be held out of 100 vectors"):
            vector_sets.held_out(vectors, count)


def test_the_settings_that_are_compared() -> None:
    assert [each.name for each in indexing.settings(1000, 64)] == [
        "flat",
        "paper",
        "auto",
        "compact",
        "compact, k * 0",
        "compact, k * 8",
    ]
    assert "paper" not in [each.name for each in indexing.settings(1000, 100)]
    assert [each.factory for each in indexing.settings(1000, 64, ["IVF2,Flat"])] == ["IVF2,Flat"]
    large = [each.factory for each in indexing.settings(1_000_000, 1024)]
    assert large == ["Flat", "IVF4096,PQ64", *["IVF4096,PQ128x4fsr"] * 3], "auto is compact, and stands there once"


def test_figures_tell_settings_apart() -> None:
    searched, asked = vector_sets.held_out(vector_sets.synthetic_vectors(1000, 64), 20)
    steps: list[tuple[str, int, int]] = []
    chosen = indexing.settings(980, 64, ["flat", "compact", "IVF16,PQ4"])
    flat, compact, coarse = indexing.measure_indexes(searched, asked, chosen, report=lambda *step: steps.append(step))
    assert steps[-1] == ("measure", 3, 3)
    assert (flat.recall_10, flat.recall_100, flat.bytes_per_vector, flat.probes) == (1, 1, 256, None)
    assert compact.recall_100 > 0.9 > coarse.recall_100
    assert max(coarse.bytes_per_vector, compact.bytes_per_vector) < flat.bytes_per_vector
    assert compact.disk_bytes_per_vector == 128
    assert compact.peak_gib > 0.01


def test_texts_are_embedded_line_by_line_once_and_kept(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("one bee\n\ntwo bees\none bee\n")
    kept = tmp_path / "kept.npy"
    vectors = vector_sets.load_vectors(tmp_path / "docs", kept, "hash", count=1, dim=1)
    assert np.allclose(vectors, HashEmbedder().embed_documents(["one bee", "two bees"]))
    (tmp_path / "docs" / "a.txt").unlink()
    assert np.allclose(vector_sets.load_vectors(tmp_path / "docs", kept, "hash", count=1, dim=1), vectors)
    assert np.allclose(vector_sets.load_vectors(None, kept, "hash", count=1, dim=1), vectors)
    with pytest.raises(FileNotFoundError):
        vector_sets.load_vectors(None, tmp_path / "gone.npy", "hash", count=1, dim=1)
