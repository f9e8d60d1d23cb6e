"""Read plain text, Markdown and reStructuredText: every character of the file is kept."""

from __future__ import annotations

from antiphon.retrieval.document import Document
from antiphon.retrieval.formats.markup import markdown_headings, plain_headings, rst_headings
from antiphon.retrieval.formats.text import decode


def read_text_document(data: bytes, source: str) -> Document:
    """Read a plain-text file.

    Args:
        data: The bytes of the file.
        source: The name of the document.

    Raises:
        ValueError: The bytes cannot be decoded.
    """
    text = decode(data)
    return Document(text, source, {}, plain_headings(text))


def read_markdown_document(data: bytes, source: str) -> Document:
    """Read a Markdown file.

    Args:
        data: The bytes of the file.
        source: The name of the document.

    Raises:
        ValueError: The bytes cannot be decoded.
    """
    text = decode(data)
    return Document(text, source, {}, markdown_headings(text))


def read_rst_document(data: bytes, source: str) -> Document:
    """Read a reStructuredText file.

    Args:
        data: The bytes of the file.
        source: The name of the document.

    Raises:
        ValueError: The bytes cannot be decoded.
    """
    text = decode(data)
    return Document(text, source, {}, rst_headings(text))
