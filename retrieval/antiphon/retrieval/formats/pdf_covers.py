"""Find the text of a PDF page that is behind opaque rectangles, such as the bars of a redaction."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import dropwhile, islice, pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pypdfium2 import PdfTextPage

Box = tuple[float, float, float, float]
"""The left, bottom, right and top of a part of a page, in points."""

_LEAST = 3.0  # minimum width and height of a rectangle that covers text, in points
_FILLED = 0.98  # minimum share of its box that a rectangle fills
_MOST = 200  # rectangles on a page; with more, no text counts as covered


def covered_characters(textpage: PdfTextPage, objects: Sequence[Any]) -> set[int]:
    """Return the indices of the characters that are behind an opaque rectangle.

    Args:
        objects: The objects of the page, from back to front.
    """
    from pypdfium2 import raw

    places = {_address(each): place for place, each in enumerate(objects)}
    after_text = dropwhile(lambda item: item[1].type != raw.FPDF_PAGEOBJ_TEXT, enumerate(objects))
    found = ((place, box) for place, each in after_text if (box := _cover(each)))
    covers = [*islice(found, _MOST + 1)]
    if not covers or len(covers) > _MOST:
        return set()
    covered = set()
    for index in range(textpage.count_chars()):
        own = places.get(_address(raw.FPDFText_GetTextObject(textpage, index)), len(objects))
        left, bottom, right, top = textpage.get_charbox(index)
        x, y = (right - left) / 4, (top - bottom) / 4  # a line through a letter does not cover its middle half
        if any(
            place > own and low <= left + x and right - x <= high and floor <= bottom + y and top - y <= ceiling
            for place, (low, floor, high, ceiling) in covers
        ):
            covered.add(index)
    return covered


def _address(item: Any) -> int | None:
    return ctypes.cast(getattr(item, "raw", item), ctypes.c_void_p).value


def _cover(item: Any) -> Box | None:
    """Return the visible part of an object if it is an opaque rectangle of at least the size of a letter; else None."""
    from pypdfium2 import raw

    if item.type != raw.FPDF_PAGEOBJ_PATH or item.level or raw.FPDFPageObj_HasTransparency(item):
        return None
    left, bottom, right, top = item.get_bounds()
    mode, strokes = ctypes.c_int(), ctypes.c_int()
    is_known = raw.FPDFPath_GetDrawMode(item, mode, strokes)
    if min(right - left, top - bottom) < _LEAST or not (is_known and mode.value):
        return None
    clip = raw.FPDFPageObj_GetClipPath(item)
    box = _rectangle(raw.FPDFPath_GetPathSegment, raw.FPDFPath_CountSegments(item), item, matrix=item.get_matrix())
    for number in range(max(raw.FPDFClipPath_CountPaths(clip), 0)):
        count = raw.FPDFClipPath_CountPathSegments(clip, number)
        clipped = _rectangle(raw.FPDFClipPath_GetPathSegment, count, clip, number)
        if box is None or clipped is None:
            return None
        box = (max(box[0], clipped[0]), max(box[1], clipped[1]), min(box[2], clipped[2]), min(box[3], clipped[3]))
    return box


def _rectangle(segment_of: Any, count: int, *path: Any, matrix: Any = None) -> Box | None:
    """Return the box of a path of ``count`` points that is a rectangle parallel to the page; else None."""
    from pypdfium2 import raw

    if count not in (4, 5):
        return None
    x, y, points = ctypes.c_float(), ctypes.c_float(), []
    for index in range(count):
        segment = segment_of(*path, index)
        if raw.FPDFPathSegment_GetType(segment) != (raw.FPDF_SEGMENT_LINETO if index else raw.FPDF_SEGMENT_MOVETO):
            return None
        raw.FPDFPathSegment_GetPoint(segment, x, y)
        points.append(matrix.on_point(x.value, y.value) if matrix else (x.value, y.value))
    (left, *_, right), (bottom, *_, top) = map(sorted, zip(*points, strict=True))
    area = abs(sum(a[0] * b[1] - b[0] * a[1] for a, b in pairwise([*points, points[0]]))) / 2
    return (left, bottom, right, top) if area > _FILLED * (right - left) * (top - bottom) else None
