"""The contract of vector indexes, checked for each kind: exact and sorted results, invalid vectors refused."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.retrieval import FlatIndex, build_vector_index
from antiphon.retrieval.vector_index.build import LocalVectorIndex
from antiphon.retrieval.vector_index.flat import Vectors, normalized

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
