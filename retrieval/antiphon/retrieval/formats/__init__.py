"""File formats. To add one, write a reader in this folder and add its file name endings to `READERS`.

A reader turns the bytes of a file into a `Document`. It imports its parser when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from antiphon.retrieval.document import Document
from antiphon.retrieval.formats.markup import markdown_headings, plain_headings, rst_headings
from antiphon.retrieval.formats.text import decode

Reader = Callable[[bytes, str], Document]
"""Called as ``reader(data, source)``. Raises a ``ValueError`` with the reason if it cannot read the data."""


def _read_plain(data: bytes, source: str) -> Document:
    text = decode(data)
    return Document(text, source, {}, plain_headings(text))


def _read_markdown(data: bytes, source: str) -> Document:
    text = decode(data)
    return Document(text, source, {}, markdown_headings(text))


def _read_rst(data: bytes, source: str) -> Document:
    text = decode(data)
    return Document(text, source, {}, rst_headings(text))


def _read_html(data: bytes, source: str) -> Document:
    from antiphon.retrieval.formats.html import read_html_document

    return read_html_document(data, source)


def _read_pdf(data: bytes, source: str) -> Document:
    from antiphon.retrieval.formats.pdf import read_pdf_document

    return read_pdf_document(data, source)


READERS: Mapping[str, Reader] = {
    ".htm": _read_html,
    ".html": _read_html,
    ".markdown": _read_markdown,
    ".md": _read_markdown,
    ".pdf": _read_pdf,
    ".rst": _read_rst,
    ".text": _read_plain,
    ".txt": _read_plain,
    ".xhtml": _read_html,
}
"""The reader of each file name ending."""

SUFFIXES = tuple(sorted(READERS))
"""The file name endings that have a reader. A name without an ending is read as plain text."""


def reader_for(suffix: str) -> Reader:
    """Return the reader for a file name ending in lower case; any unknown ending is read as plain text."""
    return READERS.get(suffix, _read_plain)


def is_markdown(source: str) -> bool:
    """Return whether a file of this name is read as Markdown."""
    return reader_for(Path(source).suffix.lower()) is _read_markdown
