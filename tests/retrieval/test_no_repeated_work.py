"""A search reads its passages in one statement, and a vector is normalized once."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

from antiphon.retrieval import (
    HashEmbedder,
    Passage,
    Retriever,
    convex_combination,
    index_passages,
    update_index,
)
from antiphon.retrieval.local_index import LocalIndex
from antiphon.retrieval.vector_index.flat import Vectors, normalized

COUNT = 150


def passages(count: int = COUNT, start: int = 0) -> list[Passage]:
    return [Passage.at("s", number, f"Passage number {number} about bees.") for number in range(start, start + count)]


class OwnNorm(HashEmbedder):
    """Returns unit vectors without calling `normalized`, whose calls are counted."""

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        drawn = np.array([np.random.default_rng([len(text), *text.encode()]).standard_normal(64) for text in texts])
        vectors: Vectors = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)
        return vectors.reshape(-1, 64)


@contextmanager
def counted_rows(*, of_queries: bool = False) -> Iterator[list[int]]:
    """Record the number of rows of each call of `normalized`, for indexed vectors or for queries."""
    rows: list[int] = []

    def watch(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or frame.f_code is not normalized.__code__ or frame.f_back is None:
            return
        if (frame.f_back.f_code.co_name == "search") is of_queries:
            rows.append(len(frame.f_locals["vectors"]))

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield rows
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize("fusion", [convex_combination, None])
def test_a_search_reads_the_passages_that_it_returns_in_one_statement(tmp_path: Path, fusion: object) -> None:
    index_passages(passages(), tmp_path, HashEmbedder())
    retriever = Retriever.open(tmp_path, reranker=None, fusion=fusion)  # type: ignore[arg-type]
    assert isinstance(retriever.index, LocalIndex)
    statements: list[str] = []
    retriever.index._content[1]._connection.set_trace_callback(statements.append)
    found = retriever.search("bees of number 7", 5)
    assert len(found) == 5
    reading = [each for each in statements if "select row, id, text" in each]
    assert len(reading) == 1
    assert retriever.index._content[1].fetch([3, 1, 3]) == [passages()[row] for row in (3, 1, 3)]


def test_missing_rows_are_named_even_among_existing_ones(tmp_path: Path) -> None:
    index_passages(passages(3), tmp_path, HashEmbedder())
    retriever = Retriever.open(tmp_path)
    assert isinstance(retriever.index, LocalIndex)
    with pytest.raises(IndexError, match="There is no passage 7; rows are 0 to 2"):
        retriever.index._content[1].fetch([1, 7])


@pytest.mark.parametrize("setting", ["flat", "compact"])
def test_a_vector_is_normalized_once_when_it_is_indexed_and_never_when_it_is_opened(
    tmp_path: Path, setting: str
) -> None:
    embedder = OwnNorm(64)
    with counted_rows() as rows:
        index_passages(passages(), tmp_path / "index", embedder, setting=setting)
    assert sum(rows) == COUNT
    with counted_rows() as rows:
        retriever = Retriever.open(tmp_path / "index", embedder=embedder, reranker=None)
    assert rows == []
    with counted_rows(of_queries=True) as queries, counted_rows() as rows:
        retriever.search("bees", 5)
    assert (queries, rows) == ([], [])


def test_a_change_normalizes_each_vector_once(tmp_path: Path) -> None:
    embedder = OwnNorm(64)
    index_passages(passages(), tmp_path / "index", embedder)
    with counted_rows() as rows:
        update_index(tmp_path / "index", embedder, upsert=passages(20, COUNT))
    assert sum(rows) == COUNT + 20
