"""Read files and folders as documents. A file that cannot be read is skipped and reported with the reason.

`antiphon.retrieval.formats` has one reader for each file format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from antiphon.retrieval.document import LONE_SURROGATE, Document
from antiphon.retrieval.file_discovery import FoundFiles, SkippedFile, find_files
from antiphon.retrieval.formats import SUFFIXES, reader_for

Progress = Callable[[str, int, int], None]
"""Called as ``progress(stage, done, total)`` during long operations. If it raises an exception, the operation stops."""


@dataclass(frozen=True, slots=True)
class LoadedDocuments:
    """The documents that were read, and the files that were skipped."""

    documents: tuple[Document, ...]
    skipped: tuple[SkippedFile, ...]


def load_documents(
    paths: Sequence[str | Path],
    *,
    exclude: Sequence[str | Path] = (),
    follow_links: bool = False,
    progress: Progress | None = None,
) -> LoadedDocuments:
    """Read files, and folders recursively, in sorted order; each file once.

    Hidden files and folders inside a folder are ignored. Files that are binary, empty, unreadable or of an unknown
    format are skipped with a reason, and so are folders that cannot be listed.

    Args:
        paths: Files and folders. A file that is listed here is read as plain text if its ending is unknown.
        exclude: Files and folders to leave out, with everything below them.
        follow_links: Also follow symbolic links that lead out of ``paths``; otherwise they are skipped.
        progress: Called with the stage ``load``.

    Raises:
        ValueError: There is no path, or no file that can be read.
        FileNotFoundError: A path does not exist.
    """
    found = require_files(paths, exclude, follow_links=follow_links)
    documents: list[Document] = []
    skipped = list(found.skipped)
    for done, file in enumerate(found.files):
        if progress:
            progress("load", done, len(found.files))
        try:
            documents.append(read_document(file.path, any_suffix=file.is_named))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            skipped.append(SkippedFile(str(file.path), reason))
    if progress:
        progress("load", len(found.files), len(found.files))
    if not documents:
        raise ValueError(_nothing_readable(paths, skipped))
    return LoadedDocuments(tuple(documents), tuple(skipped))


def require_files(
    paths: Sequence[str | Path], exclude: Sequence[str | Path] = (), *, follow_links: bool = False
) -> FoundFiles:
    """Return the result of `find_files` if it has at least one file.

    Args:
        paths: Files and folders.
        exclude: Files and folders to leave out.
        follow_links: Also follow symbolic links that lead out of ``paths``.

    Raises:
        ValueError: There is no path, or no file below the paths.
        FileNotFoundError: A path does not exist.
    """
    found = find_files(paths, exclude, follow_links=follow_links)
    if not found.files and found.skipped:
        raise ValueError(_nothing_readable(paths, found.skipped))
    if not found.files:
        places = ", ".join(str(path) for path in paths)
        raise ValueError(f"{places} holds no file; give a file or a folder with {' '.join(SUFFIXES)} files.")
    return found


def read_document(path: str | Path, *, any_suffix: bool = True) -> Document:
    """Read one file as a document.

    Plain text, Markdown and reStructuredText keep every character, including line ends, so that a span of the document
    is a span of the decoded file. For HTML and PDF it is a span of the extracted text, which is deterministic.

    Args:
        path: The file.
        any_suffix: Read a file whose ending is unknown as plain text, instead of raising an error.

    Raises:
        OSError: The file cannot be opened.
        ValueError: The file is not a regular file, is binary, not UTF-8, empty, or of an unknown format.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if not any_suffix and suffix and suffix not in SUFFIXES:
        raise ValueError(f"{suffix} files are not read (only {' '.join(SUFFIXES)})")
    if path.exists() and not path.is_file():
        raise ValueError("it is not a regular file")
    document = reader_for(suffix)(path.read_bytes(), str(path))
    if not document.text.strip("\ufeff \t\r\n\f\v\xa0"):
        raise ValueError("it holds no text (scanned pages need OCR first)" if suffix == ".pdf" else "it is empty")
    if surrogate := LONE_SURROGATE.search(document.text):
        raise ValueError(f"it holds half a character (a lone surrogate at {surrogate.start()})")
    return document


def _nothing_readable(paths: Sequence[str | Path], skipped: Sequence[SkippedFile]) -> str:
    places = ", ".join(str(path) for path in paths)
    first = f"{skipped[0].path}: {skipped[0].reason}"
    return f"Nothing in {places} can be read: {len(skipped)} skipped, the first is {first}."
