"""Draw a page of a PDF file, and find where a text is on it."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import regex

from antiphon.retrieval.formats.pdf import READING, open_pdf
from antiphon.retrieval.keywords import with_plain_characters

if TYPE_CHECKING:
    from pypdfium2 import PdfDocument, PdfPage, PdfTextPage

Box = tuple[float, float, float, float]
"""Left, top, right and bottom of a part of a page, as shares (0 to 1) of the displayed page."""

_MAX_PIXELS = 4_000_000
_MAX_SIDE = 20_000  # pixels; a page of no height has no area, but any width
_SCALE = 2.0  # pixels per point, unless the page is so large that the image exceeds one of the maxima
_GRID = 100_000  # the resolution of boxes
_MIN_MATCH = 4  # characters; a shorter part of a text may occur anywhere on a page
_PART = re.compile(r"\n|\t| {3,}|\|")  # between lines, and between the cells of a table
_LEFT_OUT = regex.compile(r"[\s\p{C}\p{Pd}]")  # white space, control characters, hyphens and dashes


def draw_page(data: bytes, number: int) -> bytes:
    """Return a page as a PNG image of at most four million pixels.

    Args:
        data: The bytes of the PDF file.
        number: The number of the page, from 1.

    Raises:
        ValueError: The file is damaged or encrypted, or the page does not exist or cannot be drawn.
    """
    with READING, open_pdf(data) as pdf:
        page = _page(pdf, number)
        width, height = page.get_size()
        scale = min(_SCALE, (_MAX_PIXELS / max(width * height, 1.0)) ** 0.5, _MAX_SIDE / max(width, height, 1.0))
        try:
            image = page.render(scale=scale).to_pil()
        except RuntimeError as error:
            raise ValueError(f"PDFium cannot draw page {number}") from error
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def find_on_page(data: bytes, number: int, text: str) -> tuple[Box, ...]:
    """Return the boxes of a text on a page, one or more per line; none if the text is not found.

    White space and hyphens are ignored, and so are differences in ligatures and quotation marks. If
    the page does not contain the text as a whole, its lines are searched one by one.

    Args:
        data: The bytes of the PDF file.
        number: The number of the page, from 1.
        text: The text, as `read_pdf_document` returns it.

    Raises:
        ValueError: The file is damaged or encrypted, or the page does not exist.
    """
    from pypdfium2 import PdfPosConv

    with READING, open_pdf(data) as pdf:
        page = _page(pdf, number)
        textpage = page.get_textpage()
        position = PdfPosConv(page, (0, 0, _GRID, _GRID, 0))
        found = []
        for left, bottom, right, top in _boxes(textpage, text):
            xs, ys = zip(position.to_bitmap(left, bottom), position.to_bitmap(right, top), strict=True)
            found.append((min(xs) / _GRID, min(ys) / _GRID, max(xs) / _GRID, max(ys) / _GRID))
        textpage.close()
    return tuple(found)


def _page(pdf: PdfDocument, number: int) -> PdfPage:
    from pypdfium2 import PdfiumError

    if not 1 <= number <= len(pdf):
        raise ValueError(f"it has no page {number}, only {len(pdf)}")
    try:
        return pdf[number - 1]
    except PdfiumError as error:
        raise ValueError(f"its page {number} is damaged") from error


def _boxes(textpage: PdfTextPage, text: str) -> Iterator[Box]:
    """Yield the boxes of a text in points of the page: left, bottom, right, top."""
    from pypdfium2 import raw

    folded, units = _folded(textpage.get_text_range())
    for start, end in _spans(folded, text):
        first, last = (raw.FPDFText_GetCharIndexFromTextIndex(textpage, units[at]) for at in (start, end - 1))
        if 0 <= first <= last:
            for index in range(textpage.count_rects(first, last - first + 1)):
                yield textpage.get_rect(index)


def _spans(page: str, text: str) -> Iterator[tuple[int, int]]:
    """Yield a text's span in a page; if it is not found, the spans of the text's lines and cells.

    Args:
        page: The text of the page, as `_folded` returns it.
        text: The text, not folded.
    """
    whole, _ = _folded(text)
    start = page.find(whole)
    if not whole or start >= 0:
        if whole:
            yield start, start + len(whole)
        return
    after = 0
    for part in _PART.split(text):
        folded, _ = _folded(part)
        if len(folded) >= _MIN_MATCH:
            start = page.find(folded, after)
            start = page.find(folded) if start < 0 else start
            if start >= 0:
                yield start, start + len(folded)
                after = start + len(folded)


def _folded(text: str) -> tuple[str, list[int]]:
    """Return the text in plain characters without white space and hyphens, and the UTF-16 index of each character."""
    characters: list[str] = []
    units: list[int] = []
    unit = 0
    for match in regex.finditer(r"\X", text):
        if not _LEFT_OUT.match(match[0]):
            plain = with_plain_characters(match[0])
            characters.append(plain)
            units += [unit] * len(plain)
        unit += len(match[0].encode("utf-16-le", "surrogatepass")) // 2
    return "".join(characters), units
