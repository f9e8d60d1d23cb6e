"""Read Word documents (docx): mammoth converts them to HTML, and the HTML reader reads that."""

from __future__ import annotations

import io
import re
from typing import Any

from antiphon.retrieval.document import Document
from antiphon.retrieval.formats.html import read_html_document
from antiphon.retrieval.formats.office import PARSER_ERRORS, open_office, title_of

# The title is level 1, so headings are one level lower than in Word. These style names are the same in all languages.
_STYLES = "\n".join(
    ["p[style-name='Title'] => h1:fresh"]
    + [f"p[style-name='heading {level}'] => h{min(level + 1, 6)}:fresh" for level in range(1, 10)]
    + ["br[type='page'] => "]
)
_FIRST_ROW = re.compile(r"(?<=<table>)<tr>((?:(?!<table>|</tr>).)*)</tr>(?=<tr>)", re.DOTALL)
_BACK_LINK = re.compile(r'\s*<a href="#(?:foot|end)note-ref-\d+">↑</a>')


def read_word_document(data: bytes, source: str) -> Document:
    """Read a Word document with its headings, lists, tables, footnotes and endnotes.

    Raises:
        ValueError: The file is damaged, encrypted, or exceeds the limits.
    """
    import mammoth

    archive = open_office(data, "a Word document", "word/document.xml")
    try:
        html = mammoth.convert_to_html(
            io.BytesIO(data), style_map=_STYLES, ignore_empty_paragraphs=True, convert_image=_without_image
        ).value
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except PARSER_ERRORS as error:
        raise ValueError(f"it is not a readable Word document ({type(error).__name__}: {error})") from error
    html = _FIRST_ROW.sub(_header, _BACK_LINK.sub("", html))
    page = f"<!doctype html><meta charset=utf-8><body>{html}</body>"
    document = read_html_document(page.encode("utf-8", "replace"), source)
    title = title_of(archive)
    return Document(document.text, source, {"title": title} if title else {}, document.headings)


def _without_image(image: Any) -> list[Any]:
    """Return nothing in place of an image."""
    return []


def _header(row: re.Match[str]) -> str:
    """Return the first row of a table as its header, which most documents do not mark."""
    return f"<thead><tr>{row[1].replace('<td', '<th').replace('</td>', '</th>')}</tr></thead>"
