"""Read PDF files with PDFium: text in reading order, title, page starts and numbered headings."""

from __future__ import annotations

import contextlib
import ctypes
import re
import threading
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from statistics import fmean
from typing import TYPE_CHECKING, Any

from antiphon.retrieval.document import LONE_SURROGATE, Document
from antiphon.retrieval.formats import ocr
from antiphon.retrieval.formats.document_builder import listed
from antiphon.retrieval.formats.markup import numbered_headings
from antiphon.retrieval.formats.pdf_covers import Box, covered_characters
from antiphon.retrieval.formats.pdf_layout import SOFT_HYPHEN, Line, in_reading_order, rotated, without_running_lines
from antiphon.retrieval.formats.pdf_text import joined, pages_text, without_hyphens
from antiphon.retrieval.formats.text import without_controls

if TYPE_CHECKING:
    from pypdfium2 import PdfDocument, PdfPage, PdfTextPage

READING = threading.Lock()
"""A lock to hold while PDFium is used, because only one thread at a time may use PDFium."""

_LIGATURES = str.maketrans(dict(zip("ﬀﬁﬂﬃﬄﬅﬆ", ("ff", "fi", "fl", "ffi", "ffl", "st", "st"), strict=True)))
_WIDE_GAP = 1.5  # a line is split into columns or cells at gaps wider than this many line heights
_LINE = re.compile(rf"[^\r\n{SOFT_HYPHEN}]*(?:{SOFT_HYPHEN}|\r?\n|\r|\Z)")
_ENCRYPTED, _UNSUPPORTED = 4, 5  # error codes of PDFium
_PICTURE = 0.5  # if pictures cover this share of a page's area, they contain the page's text
_WHITE = 250  # of 255: letters with more red, green and blue are not seen on paper
_LEAST_LAYER = 200  # characters; a page of pictures with fewer has no text layer from another program
_MOST_UNKNOWN = 0.3  # maximum share of a page's characters for which its fonts name no letters
_OCR_KINDS = {
    "scanned": "without text, only with pictures",
    "pictured": "mostly with pictures, whose text was not read",
    "unlettered": "in a font that names no letters",
}
_OTHER_KINDS = {
    "unseen": "with invisible text, which was not read",
    "drawn": "without text, only with drawings",
    "empty": "without text: blank, or the content is damaged",
}
_SHAPES = (2, 3, 4)  # PDFium's kinds of objects: paths, images, shadings


def read_pdf_document(data: bytes, source: str) -> Document:
    """Read a PDF as a document, without running headers, footers and page numbers.

    Scanned pages are read if the extra ``ocr`` is installed. The warnings list the pages that
    cannot be read, have no text, or were read by OCR.

    Args:
        data: The bytes of the file.

    Raises:
        ValueError: The file is encrypted or damaged, or no page has text.
    """
    with READING, open_pdf(data) as pdf:
        pages, warnings = _pages(pdf)
        title = _clean(pdf.get_metadata_value("Title"))
        if attachments := pdf.count_attachments():
            warnings.append(f"its attached files were not read: {attachments}")
    texts = pages_text(without_running_lines(pages))
    text, starts = joined(without_hyphens([_clean(text) for text in texts]))
    if not text.strip() and warnings:
        hint = "" if ocr.is_installed() else " (scanned pages need OCR first)"
        raise ValueError(f"it holds no text{hint}; " + "; ".join(warnings))
    metadata = {"title": title} if title else {}
    return Document(text, source, metadata, numbered_headings(text), starts, warnings=tuple(warnings))


@contextlib.contextmanager
def open_pdf(data: bytes) -> Iterator[PdfDocument]:
    """Open a PDF file for the time of a ``with`` block; the caller must hold `READING`.

    Raises:
        ValueError: The file is encrypted or damaged.
    """
    from pypdfium2 import PdfDocument, PdfiumError

    try:
        pdf = PdfDocument(data)
    except PdfiumError as error:
        code = getattr(error, "err_code", 0)
        if code == _ENCRYPTED:
            raise ValueError("it is encrypted with a password") from error
        if code == _UNSUPPORTED:
            raise ValueError("it is encrypted in a way that PDFium does not support") from error
        reason = "its data are damaged" if b"%PDF-" in data[:1024] else "it does not begin with %PDF"
        raise ValueError(f"it is not a readable PDF: {reason}") from error
    try:
        pdf.init_forms()
        yield pdf
    finally:
        pdf.close()


def _pages(pdf: PdfDocument) -> tuple[list[list[Line]], list[str]]:
    """Return the lines of each page, and warnings about what is missing."""
    from pypdfium2 import PdfiumError, raw

    pages: list[list[Line]] = []
    warnings: list[str] = []
    found: dict[str, list[int]] = defaultdict(list)
    for number in range(1, len(pdf) + 1):
        lines: list[Line] = []
        try:
            page = pdf[number - 1]
            lines, kinds = _read_page(page)
            for kind in kinds:
                found[kind].append(number)
            page.close()
        except (PdfiumError, ValueError, OverflowError) as error:
            warnings.append(f"page {number} could not be read ({str(error).rstrip('.')})")
        pages.append(lines)
    if to_read := sorted({*found["scanned"], *found["unlettered"], *found["pictured"]}):
        warnings += _read_scans(pdf, to_read, found, pages)
    warnings += [f"{_named(found[kind])} {words}" for kind, words in _OTHER_KINDS.items() if found[kind]]
    if pdf.get_formtype() in (raw.FORMTYPE_XFA_FULL, raw.FORMTYPE_XFA_FOREGROUND):
        warnings.append("its XFA form was not read")
    return pages, warnings


def _read_page(page: PdfPage) -> tuple[list[Line], list[str]]:
    """Return the lines of a page, and the kinds of the page: keys of `_OCR_KINDS` and `_OTHER_KINDS`."""
    from pypdfium2 import raw

    width, height = page.get_size()
    drawn = [*page.get_objects(max_depth=3)]  # from back to front
    objects = [each for each in drawn if each.type in _SHAPES]
    boxes = [each.get_bounds() for each in objects if each.type == raw.FPDF_PAGEOBJ_IMAGE]
    share = sum((right - left) * (top - bottom) for left, bottom, right, top in boxes) / max(width * height, 1.0)
    lines, unseen, is_lettered = _lines(page, drawn, with_invisible=share >= _PICTURE)
    kinds = ["unseen"] * unseen
    if not is_lettered:
        return [], [*kinds, "unlettered"]
    if not lines:
        return [], [*kinds, "scanned" if boxes else "drawn" if objects else "empty"]
    if share >= _PICTURE and sum(len(line.text) for line in lines) < _LEAST_LAYER:
        kinds.append("pictured")
    return lines, kinds


def _read_scans(
    pdf: PdfDocument, numbers: list[int], found: Mapping[str, list[int]], pages: list[list[Line]]
) -> Iterator[str]:
    """If OCR is installed, add the lines that it finds to ``pages``. Yield the warnings."""
    if not ocr.is_installed():
        yield from (
            f"{_named(found[kind])} {words}: OCR is needed" for kind, words in _OCR_KINDS.items() if found[kind]
        )
        return
    recognized = dict(ocr.recognize_pages(pdf, numbers))
    for number, page in recognized.items():
        typed = pages[number - 1]
        new = [line for line in page.lines if not any(_covers(each, line) for each in typed)]
        pages[number - 1] = in_reading_order(sorted(typed + new, key=lambda line: -line.top) if typed else new)
    if read := [number for number in numbers if recognized[number].lines]:
        confidence = fmean(recognized[number].confidence for number in read)
        yield f"{_named(read)} scanned and read by OCR, with a confidence of {confidence:.0%}"
    for kind in ("scanned", "unlettered"):
        if unread := [number for number in found[kind] if not recognized[number].lines]:
            yield f"{_named(unread)} {_OCR_KINDS[kind]}, in which OCR found no text"


def _covers(typed: Line, recognized: Line) -> bool:
    """Return whether the middle of a line that OCR recognized is inside a line of the file."""
    x, y = (recognized.left + recognized.right) / 2, (recognized.bottom + recognized.top) / 2
    return typed.left <= x <= typed.right and typed.bottom <= y <= typed.top


def _named(pages: list[int]) -> str:
    return f"{'pages' if len(pages) > 1 else 'page'} {listed(pages)}"


def _lines(page: PdfPage, objects: Sequence[Any], *, with_invisible: bool) -> tuple[list[Line], bool, bool]:
    """Return the lines of a page, whether invisible lines were omitted, and whether its characters are known letters.

    Args:
        objects: The objects of the page, from back to front.
        with_invisible: Whether lines that are not drawn, or white on white, are read as well.
    """
    from pypdfium2 import raw

    textpage = page.get_textpage()
    width, height = page.get_width(), page.get_height()
    turns = page.get_rotation() // 90 % 4
    if turns % 2:
        width, height = height, width
    x, y, *_ = page.get_bbox()
    lines = []
    shapes = [each for each in objects if each.type in _SHAPES]
    covered = covered_characters(textpage, objects)
    unseen = bool(covered)
    for text, (left, bottom, right, top), index in _boxes(textpage, turns, covered):
        if text.strip() and width and height:
            box = ((left - x) / width, (bottom - y) / height, (right - x) / width, (top - y) / height)
            is_beside = left < right and (max(box[:2]) > 1 or min(box[2:]) < 0)
            middle = (left + right) / 2, (bottom + top) / 2
            if is_beside or not (with_invisible or _is_seen(textpage, index, shapes, *middle)):
                unseen = True
                continue
            lines.append(rotated(Line(text, *box, _size(textpage, index) / height), turns))
    count = textpage.count_chars()
    unknown = sum(raw.FPDFText_HasUnicodeMapError(textpage, index) == 1 for index in range(count))
    textpage.close()
    lines = in_reading_order(lines)
    fields = [*_annotations(page)]
    return lines + [Line(field, 0.0, 0.5, 1.0, 0.5) for field in fields], unseen, unknown <= _MOST_UNKNOWN * count


def _is_white(colour_of: Any, *arguments: Any) -> bool:
    """Return whether a text or a shape is white or transparent; ``colour_of`` reads its colour with PDFium."""
    colour = [ctypes.c_uint() for _ in range(4)]
    is_known = colour_of(*arguments, *colour)
    *primaries, opacity = (each.value for each in colour)
    return bool(is_known) and (min(primaries) > _WHITE or not opacity)


def _is_seen(textpage: PdfTextPage, index: int, shapes: Iterable[Any], x: float, y: float) -> bool:
    """Return whether a reader sees a character.

    A visible character is drawn, and is either not white or in front of a coloured shape. The
    places of shapes in forms are not known, so these shapes count as behind the character.
    """
    from pypdfium2 import raw

    text = raw.FPDFText_GetTextObject(textpage, index)
    if raw.FPDFTextObj_GetTextRenderMode(text) == raw.FPDF_TEXTRENDERMODE_INVISIBLE:
        return False
    if not _is_white(raw.FPDFText_GetFillColor, textpage, index):
        return True
    for shape in shapes:
        left, bottom, right, top = shape.get_bounds()
        is_behind = shape.level > 0 or (left <= x <= right and bottom <= y <= top)
        is_path = shape.type == raw.FPDF_PAGEOBJ_PATH
        if is_behind and not (is_path and _is_white(raw.FPDFPageObj_GetFillColor, shape)):
            return True
    return False


def _size(textpage: PdfTextPage, index: int) -> float:
    """Return the font height of a character, in points."""
    from pypdfium2 import raw

    box = raw.FS_RECTF()
    raw.FPDFText_GetLooseCharBox(textpage, index, box)
    return float(box.top - box.bottom)


def _boxes(textpage: PdfTextPage, turns: int, covered: Container[int]) -> Iterator[tuple[str, Box, int]]:
    """Split the lines of a page at wide gaps and at covered characters.

    Yield, for each part, the text, the box, and the start of the line.
    """
    from pypdfium2 import raw

    text = textpage.get_text_range()
    for match in _LINE.finditer(text):
        indices = range(match.start(), match.start() + len(match[0].rstrip("\r\n")))
        for is_covered, run in groupby(indices, covered.__contains__):
            if is_covered:
                continue
            start, *others = run
            line = text[start : start + 1 + len(others)]
            count = raw.FPDFText_CountRects(textpage, start, len(line))
            boxes = [textpage.get_rect(index) for index in range(max(count, 0))]
            parts = [*_split(boxes, turns)]
            if len(parts) < 2:
                yield line, _around(boxes), start
            else:
                for part in parts:
                    yield " ".join(textpage.get_text_bounded(*_around(part)).split()), _around(part), start


def _split(boxes: list[Box], turns: int) -> Iterator[list[Box]]:
    part: list[Box] = []
    for box in boxes:
        if part and _along(box, turns)[0] - _along(part[-1], turns)[1] > _WIDE_GAP * _along(part[-1], turns)[2]:
            yield part
            part = []
        part.append(box)
    yield part


def _along(box: Box, turns: int) -> tuple[float, float, float]:
    """Return a box's start and end along its line, and its height; ``turns``: the page's clockwise quarter turns."""
    left, bottom, right, top = box
    begin, end = ((left, right), (bottom, top), (-right, -left), (-top, -bottom))[turns]
    return begin, end, right - left if turns % 2 else top - bottom


def _around(boxes: list[Box]) -> Box:
    if not boxes:
        return (0.0, 0.0, 0.0, 0.0)
    lefts, bottoms, rights, tops = zip(*boxes, strict=True)
    return min(lefts), min(bottoms), max(rights), max(tops)


def _annotations(page: PdfPage) -> Iterator[str]:
    """Yield the values of form fields with their names, and the text of text boxes."""
    from pypdfium2 import raw

    form = page.formenv
    for index in range(raw.FPDFPage_GetAnnotCount(page)):
        annotation = raw.FPDFPage_GetAnnot(page, index)
        try:
            subtype = raw.FPDFAnnot_GetSubtype(annotation)
            if subtype == raw.FPDF_ANNOT_FREETEXT:
                yield _string(raw.FPDFAnnot_GetStringValue, annotation, b"Contents")
            elif subtype == raw.FPDF_ANNOT_WIDGET and form is not None:
                value = _string(raw.FPDFAnnot_GetFormFieldValue, form, annotation)
                name = _string(raw.FPDFAnnot_GetFormFieldAlternateName, form, annotation)
                name = name or _string(raw.FPDFAnnot_GetFormFieldName, form, annotation)
                if value and value != "Off":
                    yield f"{name}: {value}" if name else value
        finally:
            raw.FPDFPage_CloseAnnot(annotation)


def _string(function: Any, *arguments: Any) -> str:
    """Return the UTF-16 string that a function of PDFium writes into a buffer."""
    size = function(*arguments, None, 0)
    buffer = ctypes.create_string_buffer(size)
    function(*arguments, ctypes.cast(buffer, ctypes.POINTER(ctypes.c_ushort)), size)
    return buffer.raw[: max(size - 2, 0)].decode("utf-16-le", "replace").strip()


def _clean(text: str) -> str:
    return LONE_SURROGATE.sub("\ufffd", without_controls(text.translate(_LIGATURES))).strip()
