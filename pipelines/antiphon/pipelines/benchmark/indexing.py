"""Vector indexes compared with exact search: recall, queries per second, memory. Trains no model.

Every index is built, saved, opened again from its files, and searched there: what a user of it would have.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from antiphon.pipelines.progress import Progress
from antiphon.retrieval.recall import GroundTruth, ground_truth
from antiphon.retrieval.settings import Setting, choose
from antiphon.retrieval.vectors import Vectors

_SECONDS = 2.0  # of searching, at least, for a figure of speed


@dataclass(frozen=True, slots=True)
class IndexFigures:
    """One setting: recall against exact search on held-out queries, what the index itself thought of it, speed, size.

    ``queries_per_second`` are searched one batch after another for the 100 best, ``milliseconds`` is one query alone;
    ``build_seconds`` is training, adding and choosing probes. Bytes a vector: in memory, and on disk beside it.
    ``peak_gib`` is the most memory that the whole process had held so far, mapped files included.
    """

    setting: str
    factory: str
    lists: int | None
    probes: int | None
    rescored: int
    recall_10: float
    recall_100: float
    estimated_recall_100: float
    queries_per_second: float
    milliseconds: float
    build_seconds: float
    bytes_per_vector: float
    disk_bytes_per_vector: float
    peak_gib: float

    def as_dict(self) -> dict[str, Any]:
        """All figures, rounded."""
        figures = {name: getattr(self, name) for name in self.__slots__}
        figures |= {"recall@10": round(self.recall_10, 4), "recall@100": round(self.recall_100, 4)}
        figures["estimated_recall@100"] = round(self.estimated_recall_100, 4)
        for name, digits in _DIGITS.items():
            figures[name] = round(figures[name], digits)
        return {name: figure for name, figure in figures.items() if not name.endswith(("recall_10", "recall_100"))}


_DIGITS = {
    "queries_per_second": 1,
    "milliseconds": 3,
    "build_seconds": 2,
    "bytes_per_vector": 1,
    "disk_bytes_per_vector": 1,
    "peak_gib": 3,
}


def settings(count: int, dim: int, names: Sequence[str] = ()) -> list[Setting]:
    """Flat, the paper's setting, ours as chosen by itself and for any size, and ours with more and no second looks.

    The paper's is left out for vectors that it cannot cut into 64 pieces. ``names`` are compared instead if given.
    """
    if names:
        return [choose(name, count, dim) for name in names]
    auto, compact = choose("auto", count, dim), choose("compact", count, dim)
    papers = [choose("paper", count, dim)] if dim % 64 == 0 else []
    ours = [auto, compact] if auto.is_flat else [auto]
    looks = [replace(compact, name=f"compact, k * {times}", rescored=times) for times in (0, 8)]
    return [choose("flat", count, dim), *papers, *ours, *looks]


def measure_indexes(
    vectors: Vectors, queries: Vectors, chosen: Sequence[Setting], *, report: Progress | None = None
) -> list[IndexFigures]:
    """Every setting over the same vectors, by the same held-out queries, of shape (n, dim)."""
    tell = report or (lambda stage, done, total: None)
    truth = ground_truth(vectors, 0, queries=queries)
    figures = []
    for done, setting in enumerate(chosen):
        tell("measure", done, len(chosen))
        figures.append(_measured(vectors, truth, setting))
    tell("measure", len(chosen), len(chosen))
    return figures


def _measured(vectors: Vectors, truth: GroundTruth, setting: Setting) -> IndexFigures:
    from antiphon.retrieval.vector_files import description_of, open_vectors, read_vectors, vector_index, write_vectors

    with TemporaryDirectory() as folder:
        began = time.perf_counter()
        index = vector_index(vectors, setting)
        build_seconds = time.perf_counter() - began
        write_vectors(Path(folder), index)
        description = description_of(index, setting)
        del index
        opened = open_vectors(Path(folder), read_vectors(Path(folder)), description)
        at_10, at_100 = truth.recalls(opened.search, 10, 100)
        alone = iter(range(10**9))
        return IndexFigures(
            setting=setting.name,
            factory=description.factory,
            lists=description.lists,
            probes=description.probes,
            rescored=description.rescored,
            recall_10=at_10,
            recall_100=at_100,
            estimated_recall_100=description.recall_100,
            queries_per_second=len(truth.queries) / _seconds(lambda: opened.search(truth.queries, 100)),
            milliseconds=1000 * _seconds(lambda: opened.search(_one(truth.queries, next(alone)), 100)),
            build_seconds=build_seconds,
            bytes_per_vector=description.bytes_per_vector,
            disk_bytes_per_vector=description.disk_bytes_per_vector,
            peak_gib=peak_gib(),
        )


def _one(queries: Vectors, number: int) -> Vectors:
    place = number % len(queries)
    return queries[place : place + 1]


def _seconds(search: Callable[[], object]) -> float:
    """The mean time of a search, repeated for two seconds after one that is not counted."""
    search()
    began, times = time.perf_counter(), 0
    while times == 0 or time.perf_counter() - began < _SECONDS:
        search()
        times += 1
    return (time.perf_counter() - began) / times


def peak_gib() -> float:
    """The most memory that this process has held, in GiB; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)
