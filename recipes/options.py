"""Command-line options shared by the recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Documents = Annotated[list[Path], typer.Argument(help="Files and folders of documents: txt, md, rst, html, pdf.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="The adapter's folder; an interrupted run resumes there.")]
Questions = Annotated[
    list[Path] | None, typer.Option(help="Written questions about these documents, as JSON lines; may be repeated.")
]
Seed = Annotated[int, typer.Option(help="Random seed; the same seed gives the same training examples.")]
