"""Read plain text."""

from __future__ import annotations

from antiphon.retrieval.document import Document
from antiphon.retrieval.formats.markup import plain_headings
from antiphon.retrieval.formats.text import decode_text


def read_text_document(data: bytes, source: str) -> Document:
    """Read a plain-text file: all characters but control characters and escape sequences of terminals.

    Args:
        data: The bytes of the file.
        source: The name of the document.

    Raises:
        ValueError: The bytes are binary.
    """
    decoded = decode_text(data)
    return Document(decoded.text, source, {}, plain_headings(decoded.text), warnings=decoded.warnings)
