"""The command that compares vector indexes: one table for people, or one line of JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from antiphon.pipelines.benchmark.machine import command_line, processor, units
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.options import AsJson
from antiphon.pipelines.rendering.tables import figure_table

INDEXING = {
    "setting": "setting",
    "factory": "index",
    "probes": "probes",
    "recall@100": "recall@100",
    "recall@10": "recall@10",
    "queries_per_second": "queries\na second",
    "milliseconds": "ms, one\nalone",
    "build_seconds": "build, s",
    "bytes_per_vector": "bytes\na vector",
    "disk_bytes_per_vector": "on disk",
    "peak_gib": "peak so far,\nGiB",
}


def index(
    vectors: Annotated[int, typer.Option(help="So many synthetic vectors, in clusters.")] = 100_000,
    dim: Annotated[int, typer.Option(help="Numbers in a synthetic vector.")] = 1024,
    texts: Annotated[Path | None, typer.Option(help="Instead: every line of the files in this folder.")] = None,
    vectors_file: Annotated[
        Path | None, typer.Option(help="Instead: a .npy file of vectors; with --texts it is made if it is not there.")
    ] = None,
    embedder: Annotated[str, typer.Option(help="For --texts: minilm, bge-m3, a folder or a hub name.")] = "minilm",
    queries: Annotated[int, typer.Option(help="So many of the vectors are held out and searched for.")] = 400,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            help="flat, auto, compact, paper or a FAISS factory string; may be repeated.",
            show_default="flat, paper, auto, and compact with more and fewer second looks",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure what vector indexes find of the exact nearest, how fast, and how much memory they take."""
    from antiphon.pipelines.benchmark import indexing, vector_sets

    console.quiet_libraries()
    with console.progress_bars() as report:
        all_of_them = vector_sets.load_vectors(texts, vectors_file, embedder, count=vectors, dim=dim, report=report)
        searched, asked = vector_sets.held_out(all_of_them, queries)
        count, dim = searched.shape
        chosen = indexing.settings(count, dim, setting or ())
        figures = [each.as_dict() for each in indexing.measure_indexes(searched, asked, chosen, report=report)]
    ran = {"kind": "index", "command": command_line(), "processor": processor(), "units": units()}
    if as_json:
        typer.echo(json.dumps(ran | {"vectors": count, "dim": dim, "queries": queries, "settings": figures}))
        return
    console.out.print(figure_table(f"{count:,} vectors of {dim:,}, {queries} queries", INDEXING, figures))
