"""File formats. To add one, write a reader in this folder and add a row to `FORMATS`.

A reader turns the bytes of a file into a `Document`. An unpacker turns them into the files that they contain.
Both are imported when they are first used, and import their parser when they are called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from antiphon.retrieval.document import Document
from antiphon.retrieval.formats.limits import Member

Reader = Callable[[bytes, str], Document]
"""Called as ``reader(data, source)``. Raises a ``ValueError`` with the reason if it cannot read the data."""

Unpacker = Callable[[bytes], Iterator[Member]]
"""Called as ``unpacker(data)``. Raises a ``ValueError`` with the reason if it cannot read the data."""


@dataclass(frozen=True, slots=True)
class Format:
    """A file format.

    Attributes:
        name: Its name for messages.
        suffixes: Its file name endings, in lower case.
        reader: ``module:function`` in this folder; empty if the file only contains other files.
        unpacker: ``module:function`` in this folder, if the file contains other files.
        extra: The extra that installs its parser; empty if the parser is always installed.
        is_markdown: Whether the text of its documents is Markdown.
    """

    name: str
    suffixes: tuple[str, ...]
    reader: str = ""
    unpacker: str = ""
    extra: str = ""
    is_markdown: bool = False

    def read(self, data: bytes, source: str) -> Document | None:
        """Return the document, or None if the file only contains other files.

        Args:
            data: The bytes of the file.
            source: The name of the document.

        Raises:
            ValueError: The file cannot be read, or its parser is not installed; the message has the reason.
        """
        if not self.reader:
            return None
        try:
            document: Document = _function(self.reader)(data, source)
        except ImportError as error:
            raise self._not_installed() from error
        return document

    def members(self, data: bytes) -> Iterator[Member]:
        """Yield the files that the file contains.

        Raises:
            ValueError: The file cannot be read; the message has the reason.
        """
        if self.unpacker:
            yield from _function(self.unpacker)(data)

    def _not_installed(self) -> ValueError:
        extra = f"pip install 'antiphon[{self.extra}]'" if self.extra else "install antiphon again"
        return ValueError(f"the parser of {self.name} files is not installed: {extra}")


FORMATS = (
    Format("text", (".txt", ".text"), "plain_text:read_text_document"),
    Format("Markdown", (".md", ".markdown"), "plain_text:read_markdown_document", is_markdown=True),
    Format("reStructuredText", (".rst",), "plain_text:read_rst_document"),
    Format("HTML", (".html", ".htm", ".xhtml"), "html:read_html_document"),
    Format("PDF", (".pdf",), "pdf:read_pdf_document"),
)
"""The formats that are read."""

_BY_SUFFIX = {suffix: each for each in FORMATS for suffix in each.suffixes}
_PLAIN = FORMATS[0]

SUFFIXES = tuple(sorted(_BY_SUFFIX))
"""The file name endings that have a reader. A name without an ending is read as plain text."""


def format_of(suffix: str) -> Format | None:
    """Return the format of a file name ending in lower case, or None."""
    return _BY_SUFFIX.get(suffix)


def reader_for(suffix: str) -> Reader:
    """Return the reader for a file name ending in lower case; any unknown ending is read as plain text."""
    reader: Reader = _function((format_of(suffix) or _PLAIN).reader or _PLAIN.reader)
    return reader


def is_markdown(source: str) -> bool:
    """Return whether the text of a file of this name is Markdown."""
    found = format_of(Path(source).suffix.lower())
    return found is not None and found.is_markdown


def _function(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(import_module(f"{__name__}.{module}"), function)
