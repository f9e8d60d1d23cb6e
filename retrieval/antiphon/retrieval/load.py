"""Read files and folders as documents. A file that cannot be read is skipped and reported with the reason.

`antiphon.retrieval.formats` has one reader for each file format.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from antiphon.accel.progress import ignore_progress
from antiphon.retrieval.document import LONE_SURROGATE, Document
from antiphon.retrieval.file_discovery import FoundFiles, SkippedFile, find_files
from antiphon.retrieval.formats import (
    OUTDATED,
    PLAIN_TEXT,
    SUFFIXES,
    Format,
    format_of,
    may_be_text,
    ocr,
    sniffed_format,
)
from antiphon.retrieval.formats.limits import MAX_DEPTH, MAX_MEMBERS, Member, check_size
from antiphon.retrieval.formats.text import looks_like_text
from antiphon.retrieval.source_file import SourceFile

Progress = Callable[[str, int, int], None]
"""Called as ``progress(stage, done, total)`` during long operations. If it raises an exception, the operation stops."""


@dataclass(frozen=True, slots=True)
class LoadedDocuments:
    """The documents that were read, and the files that were skipped."""

    documents: tuple[Document, ...]
    skipped: tuple[SkippedFile, ...]

    @property
    def warnings(self) -> tuple[SkippedFile, ...]:
        """The warnings of the documents; the path of a warning is its document's source."""
        return tuple(SkippedFile(each.source, warning) for each in self.documents for warning in each.warnings)


def load_documents(
    paths: Sequence[str | Path],
    *,
    exclude: Sequence[str | Path] = (),
    follow_links: bool = False,
    progress: Progress | None = None,
) -> LoadedDocuments:
    """Read files, and folders recursively, in sorted order; each file once.

    Hidden files and folders inside a folder are ignored. Files that are binary, empty, unreadable or of an unknown
    format are skipped with a reason, and so are folders that cannot be listed. Text files with an unknown extension,
    such as ``README.FHS``, are recognised by their content. Archives, mailboxes and messages with attachments contain
    several documents; ``archive.zip/folder/file.txt`` is the source of a file in an archive.

    Args:
        paths: Files and folders. A file among them is read as plain text if its format is unknown.
        exclude: Files and folders to leave out, with everything below them.
        follow_links: Also follow symbolic links to targets outside of ``paths``; else skip them.
        progress: Called with the stage ``load``, and with ``ocr`` for the scanned pages of a file.

    Raises:
        ValueError: ``paths`` is empty, or no file can be read.
        FileNotFoundError: A path does not exist.
    """
    found = require_files(paths, exclude, follow_links=follow_links)
    loaded = load_found(found, progress or ignore_progress)
    if not loaded.documents:
        raise ValueError(nothing_readable(paths, loaded.skipped))
    return loaded


def load_found(found: FoundFiles, progress: Progress) -> LoadedDocuments:
    """Read the files that `find_files` found; see `load_documents`."""
    documents: list[Document] = []
    skipped = list(found.skipped)
    for done, file in enumerate(found.files):
        progress("load", done, len(found.files))
        try:
            read = _FileReader(any_suffix=file.is_named)
            before = file.path.stat()
            with ocr.reporting(progress):
                parts = read.documents(file.path, file.source)
            version = str(file.real), before.st_size, before.st_mtime_ns, read.sha256
            origin = SourceFile(*version, file.root.given, file.root.base)
            documents += [replace(each, file=origin) for each in parts]
            skipped += read.skipped
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            skipped.append(SkippedFile(file.source, reason))
    progress("load", len(found.files), len(found.files))
    return LoadedDocuments(tuple(documents), tuple(skipped))


def require_files(
    paths: Sequence[str | Path], exclude: Sequence[str | Path] = (), *, follow_links: bool = False
) -> FoundFiles:
    """Return the result of `find_files`; raise an error if no file was found.

    Args:
        exclude: Files and folders to leave out.
        follow_links: Also follow symbolic links whose targets are outside of ``paths``.

    Raises:
        ValueError: ``paths`` is empty, or no file was found.
        FileNotFoundError: A path does not exist.
    """
    found = find_files(paths, exclude, follow_links=follow_links)
    if not found.files and found.skipped:
        raise ValueError(nothing_readable(paths, found.skipped))
    if not found.files:
        places = ", ".join(str(path) for path in paths)
        raise ValueError(f"{places} holds no file; give a file or a folder with {' '.join(SUFFIXES)} files.")
    return found


def read_documents(path: str | Path) -> LoadedDocuments:
    """Read one file and the files that it contains: archives, mailboxes, messages with attachments.

    A span of a document is a span of the extracted text, and extraction is deterministic. Plain
    text is the decoded file with its line ends, but without terminal escape sequences and embedded
    data; control characters become spaces or line ends.

    Args:
        path: The file. If its format is unknown, it is read as plain text.

    Returns:
        The documents, and the skipped files inside of the file.

    Raises:
        OSError: The file cannot be opened.
        ValueError: Neither the file nor a file in it can be read; the message has the reason.
    """
    reader = _FileReader(any_suffix=True)
    documents = tuple(reader.documents(Path(path), str(path)))
    return LoadedDocuments(documents, tuple(reader.skipped))


class _FileReader:
    """Reads one file and the files inside of it, within limits, and records the skipped files."""

    def __init__(self, *, any_suffix: bool) -> None:
        self.skipped: list[SkippedFile] = []
        self.sha256 = ""
        self._any_suffix = any_suffix
        self._bytes = 0
        self._members = 0

    def documents(self, path: Path, source: str) -> list[Document]:
        """Return the documents in a file, and set ``sha256`` to the checksum of the file.

        Args:
            source: The name of the file for users.

        Raises:
            OSError: The file cannot be opened.
            ValueError: Neither the file nor a file in it can be read.
        """
        suffix = path.suffix.lower()
        if not self._any_suffix:
            _refuse_unknown(suffix)
        if path.exists() and not path.is_file():
            raise ValueError("it is not a regular file")
        data = path.read_bytes()
        self.sha256 = hashlib.sha256(data).hexdigest()
        kind = self._format(suffix, data, self._any_suffix)
        documents = list(self._read(data, kind, source, 0))
        if not documents:
            raise ValueError(self.skipped[0].reason if len(self.skipped) == 1 else "it contains no file that is read")
        return documents

    def _read(self, data: bytes, kind: Format, source: str, depth: int) -> Iterator[Document]:
        members = kind.members(data)
        document = kind.read(data, source)
        if document is not None:
            yield _checked(document, kind)
        names: Counter[str] = Counter()
        for member in members:
            names[member.name] += 1
            again = f" ({names[member.name]})" if names[member.name] > 1 else ""
            place = f"{source}/{member.name}{again}"
            try:
                yield from self._read_member(member, place, depth + 1)
            except _LimitError:
                raise
            except ValueError as error:
                self.skipped.append(SkippedFile(place, str(error)))

    def _read_member(self, member: Member, source: str, depth: int) -> Iterator[Document]:
        if member.reason:
            raise ValueError(member.reason)
        self._bytes += len(member.data)
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise _LimitError(f"it contains more than {MAX_MEMBERS:,} files")
        try:
            check_size(self._bytes)
        except ValueError as error:
            raise _LimitError(str(error)) from error
        suffix = PurePosixPath(member.name).suffix.lower()
        _refuse_unknown(suffix)
        kind = self._format(suffix, member.data, any_suffix=False)
        if depth > MAX_DEPTH and kind.unpacker:
            raise ValueError(f"it is nested in more than {MAX_DEPTH} other files")
        yield from self._read(member.data, kind, source, depth)

    def _format(self, suffix: str, data: bytes, any_suffix: bool) -> Format:
        """Return the format of the file name's extension; if this is unknown, decide by content; else plain text."""
        if (outdated := OUTDATED.get(suffix)) and data[:4] in (b"\xd0\xcf\x11\xe0", b"PK\x03\x04", b"{\\rt"):
            raise ValueError(f"{suffix} files are not read; {outdated}")
        found = format_of(suffix) or sniffed_format(data)
        if found is None and suffix and not any_suffix and not looks_like_text(data):
            raise _unknown(suffix)
        return found or PLAIN_TEXT


class _LimitError(ValueError):
    """A file exceeds the limits, so it is not read at all."""


def _refuse_unknown(suffix: str) -> None:
    """Raise an error for an unknown file name extension, before the file is opened."""
    if suffix and format_of(suffix) is None and not may_be_text(suffix):
        raise _unknown(suffix)


def _unknown(suffix: str) -> ValueError:
    advice = OUTDATED.get(suffix)
    return ValueError(f"{suffix} files are not read{f'; {advice}' if advice else ''}")


def _checked(document: Document, kind: Format) -> Document:
    """Return the document; raise an error if it has no text that can be saved."""
    if not document.text.strip():
        empty = "it holds no text (scanned pages need OCR first)" if kind.name == "PDF" else "it is empty"
        raise ValueError("; ".join(document.warnings) or empty)
    if surrogate := LONE_SURROGATE.search(document.text):
        raise ValueError(f"it holds half a character (a lone surrogate at {surrogate.start()})")
    return document


def nothing_readable(paths: Sequence[str | Path], skipped: Sequence[SkippedFile]) -> str:
    """Return the error message for paths below which no file can be read.

    Args:
        skipped: The skipped files, with reasons; at least one.
    """
    places = ", ".join(str(path) for path in paths)
    first = f"{skipped[0].path}: {skipped[0].reason}"
    return f"Nothing in {places} can be read: {len(skipped)} skipped, the first is {first}."
