"""Files and folders to documents: txt, md, rst, html and pdf. What cannot be read is skipped and named, never fatal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from antiphon.retrieval.document import HALF_CHARACTER, Document, Heading
from antiphon.retrieval.find import Found, Skipped, find_files
from antiphon.retrieval.markup import markdown_headings, numbered_headings, plain_headings, rst_headings

Progress = Callable[[str, int, int], None]
"""Called as ``progress(stage, done, total)`` while long work goes on; what it raises stops the work."""

_MARKDOWN = frozenset({".md", ".markdown"})
_RST = frozenset({".rst"})
_HTML = frozenset({".html", ".htm", ".xhtml"})
_PDF = frozenset({".pdf"})
_PLAIN = frozenset({".txt", ".text", ""})
SUFFIXES = tuple(sorted((_MARKDOWN | _RST | _HTML | _PDF | _PLAIN) - {""}))
"""The file name endings that are read; a name without an ending is read as plain text."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a load found: the documents, and the files that were left out."""

    documents: tuple[Document, ...]
    skipped: tuple[Skipped, ...]


def load_documents(
    paths: Sequence[str | Path],
    *,
    exclude: Sequence[str | Path] = (),
    follow_links: bool = False,
    progress: Progress | None = None,
) -> Loaded:
    """Read files, and folders with all below them, in sorted order; each file once.

    Hidden files and folders inside a folder are passed over, and so is anything inside ``exclude``. A file that is
    binary, empty, unreadable or of another format is skipped with its reason, and so are folders that cannot be listed
    and links that lead out of ``paths`` (unless ``follow_links``); of a file that is named itself, any ending is read
    as plain text.

    Raises:
        ValueError: there is no path, or nothing that can be read.
        FileNotFoundError: a path does not exist.
    """
    found = required_files(paths, exclude, follow_links=follow_links)
    documents: list[Document] = []
    skipped = list(found.skipped)
    for done, file in enumerate(found.files):
        if progress:
            progress("load", done, len(found.files))
        try:
            documents.append(read_document(file.path, any_suffix=file.is_named))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            skipped.append(Skipped(str(file.path), reason))
    if progress:
        progress("load", len(found.files), len(found.files))
    if not documents:
        raise ValueError(_nothing(paths, skipped))
    return Loaded(tuple(documents), tuple(skipped))


def required_files(
    paths: Sequence[str | Path], exclude: Sequence[str | Path] = (), *, follow_links: bool = False
) -> Found:
    """What `find_files` finds, if that is one file at least.

    Raises:
        ValueError: there is no path, or no file under them.
        FileNotFoundError: a path does not exist.
    """
    found = find_files(paths, exclude, follow_links=follow_links)
    if not found.files and found.skipped:
        raise ValueError(_nothing(paths, found.skipped))
    if not found.files:
        places = ", ".join(str(path) for path in paths)
        raise ValueError(f"{places} holds no file; give a file or a folder with {' '.join(SUFFIXES)} files.")
    return found


def read_document(path: str | Path, *, any_suffix: bool = True) -> Document:
    """The document in one file. Plain text, Markdown and reStructuredText keep every character, line ends included.

    So a span of such a document is a span of the decoded file; of HTML and PDF it is a span of the extracted text,
    which is the same at every reading.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is no regular file, binary, not UTF-8, empty, or of a format that is not read.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if not any_suffix and suffix not in SUFFIXES and suffix not in _PLAIN:
        raise ValueError(f"{suffix} files are not read (only {' '.join(SUFFIXES)})")
    if path.exists() and not path.is_file():
        raise ValueError("it is not a regular file")
    document = _parse(path.read_bytes(), str(path), suffix)
    if not document.text.strip("\ufeff \t\r\n\f\v\xa0"):
        reason = "it holds no text (scanned pages need OCR first)" if suffix in _PDF else "it is empty"
        raise ValueError(reason)
    if half := HALF_CHARACTER.search(document.text):
        raise ValueError(f"it holds half a character (a lone surrogate at {half.start()})")
    return document


def is_markdown(source: str) -> bool:
    """Whether a file of this name is read as Markdown."""
    return Path(source).suffix.lower() in _MARKDOWN


def _parse(data: bytes, source: str, suffix: str) -> Document:
    if suffix in _PDF:
        from antiphon.retrieval.pdf import read_pdf

        text, title, pages = read_pdf(data, source)
        return Document(text, source, _titled(title), numbered_headings(text), pages)
    if suffix in _HTML:
        from antiphon.retrieval.html import declared_encoding, read_html

        text, title, headings = read_html(_decode(data, declared_encoding(data)))
        return Document(text, source, _titled(title), headings)
    text = _decode(data)
    return Document(text, source, {}, _headings(text, suffix))


def _titled(title: str) -> dict[str, str]:
    return {"title": title} if title else {}


def _headings(text: str, suffix: str) -> tuple[Heading, ...]:
    if suffix in _MARKDOWN:
        return markdown_headings(text)
    return rst_headings(text) if suffix in _RST else plain_headings(text)


def _decode(data: bytes, encoding: str | None = None) -> str:
    """The text of a file: in the given encoding, or UTF-16 if its byte order mark says so, or UTF-8."""
    if encoding is None:
        encoding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        kind = "it is binary" if b"\0" in data[:4096] else f"it is not {encoding.upper()} text"
        raise ValueError(f"{kind} (byte {error.start})") from error
    except LookupError as error:
        raise ValueError(f"it is in {encoding}, an encoding that is not known") from error
    if "\0" in text:
        raise ValueError(f"it is binary (a zero character at {text.index(chr(0))})")
    return text


def _nothing(paths: Sequence[str | Path], skipped: Sequence[Skipped]) -> str:
    places = ", ".join(str(path) for path in paths)
    first = f"{skipped[0].path}: {skipped[0].reason}"
    return f"Nothing in {places} can be read: {len(skipped)} skipped, the first is {first}."
