"""The vector index benchmark: synthetic vectors, held-out queries, and figures of the saved indexes."""

import json

import numpy as np
import pytest

from benchmarks import indexing, vector_sets
from tests.pipelines.recorded import run_program


def test_queries_are_held_out() -> None:
    vectors = vector_sets.synthetic_vectors(100, 8)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    before = {row.tobytes() for row in vectors}
    searched, asked = vector_sets.held_out(vectors, 10)
    assert (len(searched), len(asked)) == (90, 10)
    assert {row.tobytes() for row in np.concatenate([searched, asked])} == before
    for count in (0, 100):
        with pytest.raises(ValueError, match=f"{count} queries cannot be held out of 100 vectors"):
            vector_sets.held_out(vectors, count)


def test_the_settings_that_are_compared() -> None:
    names = ["flat", "paper", "auto", "compact", "compact, k * 0", "compact, k * 8"]
    assert [each.name for each in indexing.settings(1000, 64)] == names
    assert "paper" not in [each.name for each in indexing.settings(1000, 100)]
    large = [each.factory for each in indexing.settings(1_000_000, 1024)]
    assert large == ["Flat", "IVF4096,PQ64", *["IVF4096,PQ128x4fsr"] * 3], "auto is compact, and stands there once"


@pytest.mark.exhaustive
def test_the_program_compares_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "_SECONDS", 0.0)
    size = ("--vectors", 500, "--dim", 16, "--queries", 20)
    shown = run_program(indexing.app, *size, "--setting", "flat", "--setting", "compact", "--json")
    assert shown.exit_code == 0, shown.stderr
    figures = json.loads(shown.stdout)
    assert (figures["vectors"], figures["dim"], figures["queries"]) == (480, 16, 20)
    flat, compact = figures["settings"]
    assert (flat["recall@100"], flat["recall@10"], flat["bytes_per_vector"]) == (1, 1, 64)
    assert compact["recall@100"] > 0.9
    assert min(flat["queries_per_second"], compact["build_seconds"], compact["peak_gib"]) > 0
