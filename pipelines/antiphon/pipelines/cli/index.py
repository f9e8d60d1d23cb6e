"""The command `antiphon index`: indexes documents, or describes an index."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.options import Device
from antiphon.pipelines.cli.preparation import index_documents, show_index


def _describe(folder: Path | None) -> None:
    if folder is not None:
        from antiphon.retrieval import read_index

        console.out.print("\n".join(read_index(folder).description.lines()), markup=False, soft_wrap=True)
        raise typer.Exit


def index(
    paths: Annotated[list[Path], typer.Argument(help="Files and folders: txt, md, rst, html, pdf.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the index.")],
    embedder: Annotated[
        str, typer.Option(help="minilm, bge-m3, a folder or a hub name; auto: BGE-M3 on a GPU, MiniLM on a CPU.")
    ] = "auto",
    device: Device = None,
    setting: Annotated[
        str, typer.Option(help="Vector index: auto, flat, compact, paper, or a FAISS factory string.")
    ] = "auto",
    follow_links: Annotated[
        bool, typer.Option("--follow-links", help="Follow symbolic links, also to files outside the folders.")
    ] = False,
    describe: Annotated[
        Path | None,
        typer.Option(
            callback=_describe, is_eager=True, help="Show an index's settings, the reasons and its recall, and exit."
        ),
    ] = None,
) -> None:
    """Index documents. Passages that an earlier index in the folder embedded are not embedded again."""
    console.quiet_libraries()
    report = index_documents(paths, out, embedder=embedder, device=device, setting=setting, follow_links=follow_links)
    show_index(report)
