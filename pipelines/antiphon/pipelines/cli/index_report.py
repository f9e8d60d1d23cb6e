"""Index with progress bars, ask before documents are dropped, and print the indexed and the skipped files."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from antiphon.pipelines.cli import console
from antiphon.pipelines.rendering.sanitize import sanitize_line
from antiphon.pipelines.rendering.segments import counted

if TYPE_CHECKING:
    from antiphon.retrieval import IndexReport, SkippedFile

STAGES = {
    "load": "Reading",
    "ocr": "Recognizing scanned pages",
    "chunk": "Cutting into passages",
    "embed": "Embedding",
    "save": "Saving",
}
_SHOWN_FILES = 3
_SHOWN_REASONS = 20


def index_documents(paths: Sequence[Path], out: str | Path, *, yes: bool = False, **options: Any) -> IndexReport:
    """Index files and folders with a progress bar per stage.

    Args:
        yes: Drop documents of the index without asking.
        **options: Further arguments of `build_index`.

    Raises:
        WouldDropDocuments: documents would be dropped, and the user declined or cannot be asked.
        ValueError: no file can be read; see `build_index` for further errors.
    """
    from antiphon.retrieval import WouldDropDocuments, build_index

    try:
        with console.progress_bars(STAGES) as report:
            return build_index(paths, out, confirm=None if yes else lambda dropped: False, progress=report, **options)
    except WouldDropDocuments as error:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise
        question = str(error).partition(" To keep them")[0]
        if not typer.confirm(f"{sanitize_line(question)} Drop them?", err=True):
            raise
    with console.progress_bars(STAGES) as report:
        return build_index(paths, out, progress=report, **options)


def update_documents(location: str | Path, *, device: str | None = None) -> IndexReport:
    """Index the new and changed files of an index, with progress bars; see `refresh_index`."""
    from antiphon.retrieval import refresh_index

    with console.progress_bars(STAGES) as report:
        return refresh_index(location, device=device, progress=report)


def show_index(report: IndexReport) -> None:
    """Print the numbers of files and passages, the embedder, and the skipped files with the reasons."""
    reused = f" ({report.reused} of them embedded before)" if report.reused else ""
    kept = f", {counted(report.kept, 'passage')} of other documents kept" if report.kept else ""
    dropped = f", {counted(len(report.dropped), 'document')} dropped" if report.dropped else ""
    console.err.print(
        f"{counted(report.files, 'file')}, {counted(report.passages, 'passage')}{reused}{kept}{dropped}, "
        f"embedder {report.embedder}, {report.seconds:.1f} s: {sanitize_line(report.location)}",
        markup=False,
    )
    _show_files(f"{len(report.skipped)} skipped:", report.skipped)
    _show_files(f"{counted(len(report.warnings), 'warning')}:", report.warnings)


def show_documents(location: str) -> None:
    """Print the documents of an index with their numbers of passages."""
    from antiphon.retrieval import read_stored

    for source, count in read_stored(location).sources().items():
        console.out.print(f"{count:>7}  {sanitize_line(source)}", markup=False)


def _show_files(title: str, files: Sequence[SkippedFile]) -> None:
    """Print files grouped by their reasons, the largest groups first."""
    groups: dict[str, list[str]] = defaultdict(list)
    for file in files:
        groups[file.reason].append(file.path)
    if files:
        console.err.print(title, style="yellow")
    ranked = sorted(groups.items(), key=lambda group: -len(group[1]))
    for reason, paths in ranked[:_SHOWN_REASONS]:
        more = f" and {len(paths) - _SHOWN_FILES} more" if len(paths) > _SHOWN_FILES else ""
        line = f"  {', '.join(paths[:_SHOWN_FILES])}{more}: {reason}"
        console.err.print(sanitize_line(line), style="yellow", markup=False)
    if len(ranked) > _SHOWN_REASONS:
        rest = sum(len(paths) for _, paths in ranked[_SHOWN_REASONS:])
        console.err.print(f"  and {rest} more, for {len(ranked) - _SHOWN_REASONS} other reasons", style="yellow")
