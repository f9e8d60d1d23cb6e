"""The layout of PDF pages: rows, the reading order of columns, and running headers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

SOFT_HYPHEN = "\ufffe"
"""PDFium writes this character for a hyphen at a line's end, and does not end the line after it."""

_NUMBER = re.compile(r"\d+")
_PAGE_NUMBER = re.compile(
    r"[\W_]*(?:(?:page|seite|p\.)\s*)?(?:#|[ivxlc]+)(?:\s*(?:/|of|von)\s*#)?[\W_]*", re.IGNORECASE
)
_MARGIN = 0.1  # share of a page's height, at its top and bottom, that running headers and footers take
_MOST_CROSSING = 0.25
SAME_LINE = 0.003
"""Lines on one baseline are at most this far apart, as a share of the page's height."""
_LEAST_OVERLAP = 0.5  # minimum share of their height that lines on one baseline have in common
_LEAST_COLUMN = 4  # minimum number of lines of a column
_LEAST_FILL = 0.5  # minimum share of a column's width that its lines take; cells of tables take less


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a page: its text, and its box on the displayed page.

    Coordinates go from 0 to 1, from the lower left corner of the page. ``size`` is the height of
    the font as a share of the page's height; 0 if it is unknown.
    """

    text: str
    left: float
    bottom: float
    right: float
    top: float
    size: float = 0.0

    @property
    def is_vertical(self) -> bool:
        """Whether the line runs up or down the page."""
        return len(self.text) > 3 and self.top - self.bottom > 2 * (self.right - self.left)


def in_reading_order(lines: Sequence[Line]) -> list[Line]:
    """Return the lines of a page in reading order: column by column, vertical lines at the end.

    Args:
        lines: The lines in the order of the file, split at wide gaps.
    """
    level = [line for line in lines if not line.is_vertical]
    if not level:
        return list(lines)
    gutter = _gutter(level)
    ordered = level if gutter is None else list(_by_column(level, gutter))
    return ordered + [line for line in lines if line.is_vertical]


def without_running_lines(pages: Sequence[Sequence[Line]]) -> list[list[Line]]:
    """Return the lines of each page without running headers, footers and page numbers.

    Headers and footers are lines in the margins that are equal, except for numbers, on three pages
    (in a short document, on two). A number in a margin is a page number if its difference from the
    page's position is the same on several pages.
    """
    counts = Counter(key for lines in pages for key in {_key(line) for line in _marginal(lines)})
    offsets = Counter(
        int(number[0]) - position
        for position, lines in enumerate(pages)
        for line in _marginal(lines)
        if _PAGE_NUMBER.fullmatch(_key(line)) and (number := _NUMBER.search(line.text))
    )
    enough = 2 if len(pages) <= 4 else 3

    def is_running(line: Line, position: int) -> bool:
        key, number = _key(line), _NUMBER.search(line.text)
        if _PAGE_NUMBER.fullmatch(key):
            return offsets[int(number[0]) - position] > 1 if number and len(number[0]) < 9 else counts[key] >= 1
        return counts[key] >= enough

    kept = []
    for position, lines in enumerate(pages):
        marginal = set(map(id, _marginal(lines)))
        rest = [line for line in lines if id(line) not in marginal or not is_running(line, position)]
        kept.append(rest or list(lines))
    return kept


def rows_of(lines: Sequence[Line]) -> Iterator[list[Line]]:
    """Yield the rows: lines on one baseline, from left to right."""
    row: list[Line] = []
    for line in lines:
        if row and not (_overlap(row[-1], line) > _LEAST_OVERLAP and line.left >= row[-1].right):
            yield row
            row = []
        row.append(line)
    if row:
        yield row


def _overlap(one: Line, other: Line) -> float:
    """Return the height that two lines share, as a fraction of the smaller height."""
    shared = min(one.top, other.top) - max(one.bottom, other.bottom)
    return shared / max(min(one.top - one.bottom, other.top - other.bottom), 1e-6)


def _marginal(lines: Sequence[Line]) -> Iterator[Line]:
    """Yield, of the two highest and two lowest lines, the lines in a margin that are not cells of tables."""
    level = sorted((line for line in lines if not line.is_vertical), key=lambda line: -line.top)
    outer = [line for line in level[:2] if line.bottom > 1 - _MARGIN] + [
        line for line in level[-2:] if line.top < _MARGIN
    ]
    yield from (line for line in outer if not _is_cell(line, level))


def _is_cell(line: Line, lines: Sequence[Line]) -> bool:
    """Return whether a line seems to be a cell of a table.

    A line is a cell if its row has other lines, and the row of the nearest line above or below it
    has other lines too.
    """
    row = [each for each in lines if _overlap(line, each) > _LEAST_OVERLAP]
    others = (each for each in lines if each not in row)
    nearest = min(others, key=lambda each: abs(each.bottom - line.bottom), default=line)
    return min(len(row), sum(_overlap(nearest, each) > _LEAST_OVERLAP for each in lines)) > 1


def _key(line: Line) -> str:
    return _NUMBER.sub("#", " ".join(line.text.split())).casefold()


def _gutter(lines: Sequence[Line]) -> float | None:
    """Return the middle of the gap between two columns of prose if the file's order mixes the columns, or None."""
    left, right = min(line.left for line in lines), max(line.right for line in lines)
    candidates = [left + (right - left) * step / 100 for step in range(30, 71)]
    crossings = [sum(line.left < x < line.right for line in lines) for x in candidates]
    fewest = min(crossings)
    best = [x for x, count in zip(candidates, crossings, strict=True) if count == fewest]
    gutter = best[len(best) // 2]
    columns = [line for line in lines if line.right <= gutter], [line for line in lines if line.left >= gutter]
    if fewest > _MOST_CROSSING * len(lines) or min(map(len, columns)) < _LEAST_COLUMN:
        return None
    for column in columns:
        width = max(line.right for line in column) - min(line.left for line in column)
        if median(line.right - line.left for line in column) < _LEAST_FILL * width or width < 0.2 * (right - left):
            return None
    sides = [line.left >= gutter for line in lines if not line.left < gutter < line.right]
    changes = sum(one != other for one, other in pairwise(sides))
    return gutter if changes > 2 + 2 * fewest else None


def _by_column(lines: Sequence[Line], gutter: float) -> Iterator[Line]:
    """Yield the left column, then the right column.

    A line across both columns comes after all lines above it, and before all lines below it.
    """
    columns: tuple[list[Line], list[Line]] = ([], [])
    for line in sorted(lines, key=lambda line: -line.top):
        if line.left < gutter < line.right:
            yield from (*columns[0], *columns[1], line)
            columns = ([], [])
        else:
            columns[line.left >= gutter].append(line)
    yield from (*columns[0], *columns[1])


def rotated(line: Line, quarter_turns: int) -> Line:
    """Return the line with its box turned clockwise, as a page is displayed.

    Args:
        line: The line; its box is in the coordinates of the page before it is turned.
        quarter_turns: How often the page is turned by 90 degrees.
    """
    for _ in range(quarter_turns % 4):
        line = replace(line, left=line.bottom, right=line.top, bottom=1 - line.right, top=1 - line.left)
    return line
