"""Vector index benchmark: recall against exact search, queries per second, memory.

Every index is built, saved and opened from its files before it is searched, as in normal use.

python -m benchmarks.indexing
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log2
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from antiphon.accel.processor import processor_name
from antiphon.accel.progress import Progress
from antiphon.pipelines.benchmark.facts import command_line, instruction_sets
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.options import AsJson
from antiphon.pipelines.rendering.tables import result_table
from antiphon.retrieval.vector_index.flat import Vectors
from antiphon.retrieval.vector_index.settings import PER_LIST, IndexSetting, choose_setting
from antiphon.retrieval.vector_index.training import GroundTruth, ground_truth
from benchmarks.program import program
from benchmarks.vector_sets import held_out, load_vectors

INDEXING = {
    "setting": "setting",
    "factory": "index",
    "probes": "probes",
    "recall@100": "recall@100",
    "recall@10": "recall@10",
    "queries_per_second": "queries\nper second",
    "milliseconds": "latency,\nms",
    "build_seconds": "build, s",
    "bytes_per_vector": "bytes\nper vector",
    "disk_bytes_per_vector": "on disk",
    "peak_gib": "peak so far,\nGiB",
}

_SECONDS = 2.0  # minimum duration of a speed measurement


@dataclass(frozen=True, slots=True)
class IndexFigures:
    """Figures of one setting.

    Attributes:
        setting: Name of the setting.
        factory: FAISS factory string.
        lists: Number of inverted lists; None for a flat index.
        probes: Number of lists searched per query.
        rescored: Rescoring factor: k times this many candidates are scored again; 0 for none.
        recall_10: Recall@10 on held-out queries.
        recall_100: Recall@100 on held-out queries.
        estimated_recall_100: Recall@100 that the index estimated when it was built.
        queries_per_second: Throughput of batched top-100 queries.
        milliseconds: Latency of one query alone.
        build_seconds: Training, adding, and selecting the number of probes.
        bytes_per_vector: Size in memory.
        disk_bytes_per_vector: Additional size on disk (memory-mapped vectors).
        peak_gib: Peak memory of the whole process so far, including mapped files.
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
        """Return all figures, rounded."""
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


def settings(count: int, dim: int, names: Sequence[str] = ()) -> list[IndexSetting]:
    """Return the settings to compare.

    By default: flat, the paper's setting (if ``dim`` is a multiple of 64), auto, and compact with less and more
    rescoring.

    Args:
        count: Number of vectors.
        dim: Dimension of the vectors.
        names: Names of settings to compare instead.
    """
    if names:
        return [_paper(count) if name == "paper" else choose_setting(name, count, dim) for name in names]
    auto, compact = choose_setting("auto", count, dim), choose_setting("compact", count, dim)
    papers = [_paper(count)] if dim % 64 == 0 else []
    ours = [auto, compact] if auto.is_flat else [auto]
    looks = [replace(compact, name=f"compact, k * {times}", rescored=times) for times in (0, 8)]
    return [choose_setting("flat", count, dim), *papers, *ours, *looks]


def _paper(count: int) -> IndexSetting:
    """Return IVF4096,PQ64 with 16 probes, or with as many lists as there are vectors to train them."""
    lists = min(4096, 1 << int(log2(max(1, count / PER_LIST))))
    return IndexSetting("paper", f"IVF{lists},PQ64", lists, 0, min(16, lists), 0, "it is the paper's setting")


def measure_indexes(
    vectors: Vectors, queries: Vectors, chosen: Sequence[IndexSetting], *, report: Progress | None = None
) -> list[IndexFigures]:
    """Measure every setting on the same vectors and queries.

    Args:
        vectors: Vectors to index, of shape (n, dim).
        queries: Held-out queries, of shape (m, dim).
        chosen: Settings to measure.
        report: Called with stage, done and total.
    """
    tell = report or (lambda stage, done, total: None)
    truth = ground_truth(vectors, 0, queries=queries)
    figures = []
    for done, setting in enumerate(chosen):
        tell("measure", done, len(chosen))
        figures.append(_measured(vectors, truth, setting))
    tell("measure", len(chosen), len(chosen))
    return figures


def _measured(vectors: Vectors, truth: GroundTruth, setting: IndexSetting) -> IndexFigures:
    from antiphon.retrieval.vector_index.build import build_vector_index, describe_index
    from antiphon.retrieval.vector_index.files import open_vectors, read_vectors, write_vectors

    with TemporaryDirectory() as folder:
        began = time.perf_counter()
        index = build_vector_index(vectors, setting)
        build_seconds = time.perf_counter() - began
        write_vectors(Path(folder), index)
        description = describe_index(index, setting)
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
    """Return the mean duration of a search over two seconds, after one unmeasured search."""
    search()
    began, times = time.perf_counter(), 0
    while times == 0 or time.perf_counter() - began < _SECONDS:
        search()
        times += 1
    return (time.perf_counter() - began) / times


def peak_gib() -> float:
    """Return the peak memory of this process in GiB; 0 if the system does not report it."""
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)


def index(
    vectors: Annotated[int, typer.Option(help="Number of synthetic vectors, in clusters.")] = 100_000,
    dim: Annotated[int, typer.Option(help="Dimension of the synthetic vectors.")] = 1024,
    texts: Annotated[Path | None, typer.Option(help="Embed every line of the files in this folder instead.")] = None,
    vectors_file: Annotated[
        Path | None, typer.Option(help="Use a .npy file of vectors instead; with --texts it is written if missing.")
    ] = None,
    embedder: Annotated[str, typer.Option(help="For --texts: minilm, bge-m3, a folder or a hub name.")] = "minilm",
    queries: Annotated[int, typer.Option(help="Number of vectors held out as queries.")] = 400,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            help="flat, auto, compact, paper or a FAISS factory string; may be repeated.",
            show_default="flat, paper, auto, and compact with more and less rescoring",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure recall, speed and memory of vector indexes against exact search."""
    console.quiet_libraries()
    with console.progress_bars() as report:
        loaded = load_vectors(texts, vectors_file, embedder, count=vectors, dim=dim, report=report)
        searched, asked = held_out(loaded, queries)
        count, dim = searched.shape
        chosen = settings(count, dim, setting or ())
        figures = [each.as_dict() for each in measure_indexes(searched, asked, chosen, report=report)]
    facts = {
        "kind": "index",
        "command": command_line("python -m benchmarks.indexing"),
        "processor": processor_name(),
        "units": instruction_sets(),
        "vectors": count,
        "dim": dim,
        "queries": queries,
    }
    if as_json:
        typer.echo(json.dumps(facts | {"settings": figures}))
        return
    console.out.print(result_table(f"{count:,} vectors of {dim:,}, {queries} queries", INDEXING, figures))


app = program(index)

if __name__ == "__main__":
    app()
