"""File formats. To add one, write a reader in this folder and add a row to `FORMATS`.

A reader converts the bytes of a file to a `Document`. An unpacker yields the files inside a file.
Readers and unpackers are imported when they are first used, and import parsers when called.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from mimetypes import MimeTypes
from pathlib import Path
from typing import Any

from antiphon.retrieval.block import Markup
from antiphon.retrieval.document import Document
from antiphon.retrieval.formats.limits import Member, open_zip


@dataclass(frozen=True, slots=True)
class Format:
    """A file format.

    Attributes:
        suffixes: The file name endings of the format, in lower case.
        reader: ``module:function`` in this folder; empty if the file only contains other files.
        unpacker: ``module:function`` in this folder, if the file contains other files.
        markup: The markup in the text of documents with this format.
    """

    name: str
    suffixes: tuple[str, ...]
    reader: str = ""
    unpacker: str = ""
    markup: Markup = Markup.PLAIN

    def read(self, data: bytes, source: str) -> Document | None:
        """Return the document, or None if the file only contains other files.

        Raises:
            ValueError: The file cannot be read; the message has the reason.
        """
        document: Document | None = _function(self.reader)(data, source) if self.reader else None
        return document

    def members(self, data: bytes) -> Iterator[Member]:
        """Yield the files that the file contains.

        Raises:
            ValueError: The file cannot be read; the message has the reason.
        """
        if self.unpacker:
            yield from _function(self.unpacker)(data)


_CODE = (
    *(".bash", ".c", ".cc", ".cfg", ".cpp", ".cs", ".css", ".go", ".h", ".hpp", ".ini", ".java", ".js", ".jsx", ".kt"),
    *(".lua", ".php", ".pl", ".r", ".rb", ".rs", ".scala", ".sh", ".sql", ".swift", ".toml", ".ts", ".tsx", ".yaml"),
    ".yml",
)

FORMATS = (
    Format("text", (".txt", ".text"), "plain_text:read_text_document"),
    Format("Markdown", (".md", ".markdown"), "markup:read_markdown_document", markup=Markup.MARKDOWN),
    Format("reStructuredText", (".rst",), "rst:read_rst_document"),
    Format("HTML", (".html", ".htm", ".xhtml"), "html:read_html_document"),
    Format("PDF", (".pdf",), "pdf:read_pdf_document"),
    Format("Word", (".docx", ".docm"), "word:read_word_document"),
    Format("PowerPoint", (".pptx", ".pptm"), "powerpoint:read_powerpoint_document"),
    Format("Excel", (".xlsx", ".xlsm"), "excel:read_excel_document"),
    Format("CSV", (".csv", ".tsv", ".tab"), "tables:read_csv_document"),
    Format("EPUB", (".epub",), "epub:read_epub_document"),
    Format("e-mail", (".eml",), "mail:read_mail_document", "mail:mail_attachments"),
    Format("mailbox", (".mbox",), unpacker="mail:mailbox_messages"),
    Format("notebook", (".ipynb",), "notebook:read_notebook_document", markup=Markup.MARKDOWN),
    Format("JSON", (".json",), "records:read_json_document"),
    Format("JSON Lines", (".jsonl", ".ndjson"), "records:read_jsonl_document"),
    Format("Python", (".py", ".pyi"), "source_code:read_python_document"),
    Format("source code", _CODE, "source_code:read_code_document"),
    Format("ZIP", (".zip",), unpacker="archive:zip_members"),
)
"""The formats that are read."""

OUTDATED = {
    ".doc": "save it as .docx",
    ".xls": "save it as .xlsx",
    ".ppt": "save it as .pptx",
    ".rtf": "save it as .docx",
    ".odt": "save it as .docx",
    ".ods": "save it as .xlsx",
    ".odp": "save it as .pptx",
    ".msg": "save it as .eml",
}
"""For the file name ending of each format that cannot be read, advice for the user."""

_BY_SUFFIX = {suffix: each for each in FORMATS for suffix in each.suffixes}
_MACHINE_WRITTEN = (".diff", ".lock", ".log", ".map", ".patch", ".po", ".pot")
_MEDIA_TYPES = MimeTypes()

PLAIN_TEXT = FORMATS[0]
"""The format of text files without an ending."""

SUFFIXES = tuple(sorted(_BY_SUFFIX))
"""The file name endings of all formats. A file without an ending is read as plain text."""


def format_of(suffix: str) -> Format | None:
    """Return the format with this ending of file names (in lower case), or None."""
    return _BY_SUFFIX.get(suffix)


def may_be_text(suffix: str) -> bool:
    """Return whether a file with this unknown ending may be a text for people, such as ``GFDL-1.3``.

    Endings that have a media type, such as ``.svg``, are excluded, and so are endings of files that
    programs write.
    """
    return suffix not in _MACHINE_WRITTEN and _MEDIA_TYPES.guess_type(f"name{suffix}") == (None, None)


def sniffed_format(data: bytes) -> Format | None:
    """Return the format that can be recognized by the first bytes of a file, or None."""
    head = data[:1024].lstrip()
    if head.startswith(b"%PDF-"):
        return format_of(".pdf")
    if head[:15].lower().startswith((b"<!doctype html", b"<html")):
        return format_of(".html")
    if data.startswith(b"PK\x03\x04"):
        names = {"word/document.xml": ".docx", "ppt/presentation.xml": ".pptx", "xl/workbook.xml": ".xlsx"}
        found = open_zip(data, "a ZIP archive").namelist()
        ending = next((suffix for name, suffix in names.items() if name in found), "")
        return format_of(ending or (".epub" if "META-INF/container.xml" in found else ".zip"))
    return None


def markup_of(source: str) -> Markup:
    """Return the markup in the text of a file with this name."""
    found = format_of(Path(source).suffix.lower())
    return found.markup if found is not None else Markup.PLAIN


def _function(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(import_module(f"{__name__}.{module}"), function)
