"""Read plain text."""

from __future__ import annotations

from antiphon.retrieval.document import Document, Regions
from antiphon.retrieval.formats.markup import plain_headings
from antiphon.retrieval.formats.text import decode_text


def read_text_document(data: bytes, source: str) -> Document:
    """Read a plain-text file without control characters and escape sequences of terminals.

    The place of a passage is its range of lines.

    Raises:
        ValueError: The bytes are binary.
    """
    decoded = decode_text(data)
    headings, lines = plain_headings(decoded.text), Regions.of_lines(decoded.text)
    return Document(decoded.text, source, {}, headings, regions=lines, warnings=decoded.warnings)
