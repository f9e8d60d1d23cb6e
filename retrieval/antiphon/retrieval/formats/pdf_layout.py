"""The layout of PDF pages: reading order of columns, running headers, and how pages continue each other."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

SOFT_HYPHEN = "\ufffe"
"""PDFium writes this for a hyphen at the end of a line, and no line end after it."""

_HYPHEN_AT_END = re.compile(r"(?<=[^\W\d_])[-\xad\ufffe\u2010]\Z")
_HYPHENATED = re.compile(rf"(\w*[^\W\d_])[{SOFT_HYPHEN}\xad](\w+)")
_ENDS_SENTENCE = re.compile(r"[.!?:;…。！？।॥؟][\"'”’»)\]」』]*\Z")
_NUMBER = re.compile(r"\d+")
_PAGE_NUMBER = re.compile(
    r"[\W_]*(?:(?:page|seite|p\.)\s*)?(?:#|[ivxlc]+)(?:\s*(?:/|of|von)\s*#)?[\W_]*", re.IGNORECASE
)
_MARGIN = 0.1  # of the height of a page: where running headers and footers are
_MOST_CROSSING = 0.25
_SAME_LINE = 0.003  # of the height of a page
_PARAGRAPH = 1.6  # times the usual distance of lines
_CELL_GAP = "   "
_FULL_LINE = 30  # characters
_LEAST_COLUMN = 4  # lines
_LEAST_FILL = 0.5  # of the width of a column that its lines take; cells of tables take less


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a page: its text and its box as displayed, from 0 to 1 of the page; the origin is at the lower left."""

    text: str
    left: float
    bottom: float
    right: float
    top: float

    @property
    def is_vertical(self) -> bool:
        """Whether the line runs up or down the page."""
        return len(self.text) > 3 and self.top - self.bottom > 2 * (self.right - self.left)


def in_reading_order(lines: Sequence[Line]) -> list[Line]:
    """Return the lines of a page in reading order: columns one after the other, sideways lines at the end.

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

    They are in the margins, equal up to numbers on three pages (or on two of a short document), and a page number
    differs from the position of its page by the same number on several pages.
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


def page_text(lines: Sequence[Line]) -> str:
    """Return the text of a page: cells of one row on one line, and an empty line where lines are further apart.

    Args:
        lines: The lines in reading order. A line that ends with `SOFT_HYPHEN` goes on in the next one.
    """
    pitches = [above.bottom - line.bottom for above, line in pairwise(lines)]
    positive = sorted(pitch for pitch in pitches if pitch > _SAME_LINE) or [0.0]
    usual = positive[len(positive) // 4]  # most pages have more lines than paragraphs
    text = "".join(line.text for line in lines[:1])
    for above, line, pitch in zip(lines, lines[1:], pitches, strict=False):
        if abs(pitch) < _SAME_LINE and line.left >= above.right:
            gap = _CELL_GAP
        elif text.endswith(SOFT_HYPHEN):
            gap = ""
        elif pitch < -usual:  # the top of the next column
            text, gap = _continued(text, line.text)
        else:
            gap = "\n\n" if pitch > _PARAGRAPH * usual > 0 else "\n"
        text += gap + line.text
    return text


def joined(pages: Sequence[str]) -> tuple[str, tuple[int, ...]]:
    """Return the text of all pages and the first character of each; a sentence goes on across a page break."""
    parts: list[str] = []
    starts, length = [], 0
    for page in pages:
        if page and parts:
            before, gap = _continued(parts[-1], page)
            length += len(before) - len(parts[-1]) + len(gap)
            parts[-1:] = [before, gap]
        starts.append(length)
        if page:
            parts.append(page)
            length += len(page)
    return "".join(parts), tuple(starts)


def _continued(text: str, following: str) -> tuple[str, str]:
    """Return the text without a hyphen at its end, and the gap before what follows on the next page or column."""
    if _HYPHEN_AT_END.search(text[-2:]) and following[0].islower():
        return text[:-1], ""
    goes_on = following[0].islower() or _is_full_line(text)
    return text, "\n" if goes_on and not _ENDS_SENTENCE.search(text[-9:]) else "\n\n"


def without_hyphens(pages: Sequence[str]) -> list[str]:
    """Return the pages with words that were hyphenated at the end of a line joined.

    A hyphen stays if the word occurs with it elsewhere in the document, as in ``well-known``, or before a capital.

    Args:
        pages: The text of each page, in which `SOFT_HYPHEN` marks the hyphens.
    """
    compounds = {word.casefold() for page in pages for word in re.findall(r"[^\W\d_]+(?:-[^\W\d_]+)+", page)}

    def join(match: re.Match[str]) -> str:
        first, second = match[1], match[2]
        compound = f"{first}-{second}"
        return compound if compound.casefold() in compounds or not second[0].islower() else first + second

    return [_HYPHENATED.sub(join, page).replace(SOFT_HYPHEN, "-").replace("\xad", "") for page in pages]


def _is_full_line(text: str) -> bool:
    """Return whether the last line is about as long as the lines before it, so that its paragraph may go on."""
    last = text[-2000:].split("\n")
    return len(last) > 2 and len(last[-1]) > max(_FULL_LINE, 0.7 * max(map(len, last[-12:-1])))


def _marginal(lines: Sequence[Line]) -> Iterator[Line]:
    """Yield the two outermost lines at the top and at the bottom that are in the margin."""
    level = sorted((line for line in lines if not line.is_vertical), key=lambda line: -line.top)
    yield from (line for line in level[:2] if line.bottom > 1 - _MARGIN)
    yield from (line for line in level[-2:] if line.top < _MARGIN)


def _key(line: Line) -> str:
    return _NUMBER.sub("#", " ".join(line.text.split())).casefold()


def _gutter(lines: Sequence[Line]) -> float | None:
    """Return the middle of the space between two columns of prose that the file interleaves, or None."""
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
    """Yield the lines from top to bottom; between lines across both columns, first the left column, then the right."""
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
