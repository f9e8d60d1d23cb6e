"""The commands `antiphon backup` and `antiphon restore`: an index with its uploaded files, to and from one archive."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.pipelines.cli import console
from antiphon.pipelines.rendering.sanitize import sanitize_line

if TYPE_CHECKING:
    from antiphon.retrieval import BackupReport

Uploads = Annotated[
    Path | None, typer.Option(help="Folder of uploaded files.", show_default="the folder INDEX-uploads next to it")
]


def backup(
    index: Annotated[Path, typer.Argument(help="Folder of the index.")],
    file: Annotated[Path, typer.Argument(help="Archive to write: a name that ends with .tar, .tar.gz or .tgz.")],
    uploads: Uploads = None,
) -> None:
    """Write an index and its uploaded files to an archive, also while a server uses them."""
    from antiphon.retrieval import backup_index

    with console.status(f"Backing up {index}"):
        report = backup_index(index, file, uploads=uploads)
    _show(f"Backed up to {file}", report)


def restore(
    file: Annotated[Path, typer.Argument(help="Archive that `antiphon backup` wrote.")],
    index: Annotated[Path, typer.Argument(help="Folder of the index.")],
    uploads: Uploads = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing index and its uploaded files.")] = False,
) -> None:
    """Restore an index and its uploaded files from an archive, after checking all of it."""
    from antiphon.retrieval import restore_index

    with console.status(f"Restoring {index}"):
        report = restore_index(file, index, uploads=uploads, force=force)
    _show(f"Restored {index}, as it was on {report.created}", report)


def _show(done: str, report: BackupReport) -> None:
    files = f"{report.passages} passages, {report.uploads} uploaded files, {report.bytes / 1e6:,.1f} MB"
    console.err.print(f"{sanitize_line(done)}: {files}", markup=False, soft_wrap=True)
