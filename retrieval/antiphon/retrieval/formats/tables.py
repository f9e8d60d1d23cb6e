"""Tables with names of columns, and files of comma- or tab-separated values."""

from __future__ import annotations

import csv
import io
import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from antiphon.retrieval.document import Document
from antiphon.retrieval.formats.document_builder import DocumentBuilder
from antiphon.retrieval.formats.merged_cells import Merge, count_header_rows, is_number, joined_header
from antiphon.retrieval.formats.text import decode_text

MAX_CELLS = 5_000_000
_MAX_ROWS = 2_000_000  # rows including empty ones
_MOST_TITLES = 10  # rows above the header of a table
_NAMED_DELIMITER = re.compile(r'"?sep=(.)"?\r?\n')  # the first line, as Excel writes and reads it
_MAX_FIELD = 1_000_000  # characters of one value


def read_csv_document(data: bytes, source: str) -> Document:
    """Read comma-, semicolon-, tab- or bar-separated values as one table; the place of a passage is its rows.

    Raises:
        ValueError: The bytes cannot be decoded, or the table exceeds the limits.
    """
    decoded = decode_text(data)
    csv.field_size_limit(max(csv.field_size_limit(), _MAX_FIELD))
    builder, counter, rows = DocumentBuilder(), CellCounter(), list[list[str]]()
    try:
        for row in _csv_rows(decoded.text, source):
            counter.add(len(row))
            rows.append(row)
    except csv.Error as error:
        raise ValueError(f"it is not a readable table ({error})") from error
    add_tables(builder, [*filled(enumerate(rows, 1), lambda number, first, last: {"rows": str(number)})])
    return builder.build(source, warnings=decoded.warnings)


Place = Callable[[int, int, int], dict[str, str]]
"""A function from a row, its first and its last column (all from 1) to the place of the cells."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row without the empty cells at its ends. Numbers of rows and columns count from 1."""

    number: int
    column: int
    cells: Sequence[str]
    place: Place


class TooLargeError(ValueError):
    """A table exceeds the limits."""


class CellCounter:
    """Counts the rows and cells of a file, and refuses a file with too many."""

    def __init__(self) -> None:
        self._rows = self._cells = 0

    def add(self, cells: int) -> None:
        """Count one row of ``cells`` cells.

        Raises:
            TooLargeError: The file has too many rows or cells.
        """
        self._rows += 1
        self._cells += cells
        if self._cells > MAX_CELLS or self._rows > _MAX_ROWS:
            raise TooLargeError(f"it has more than {MAX_CELLS:,} cells or {_MAX_ROWS:,} rows")


def add_tables(builder: DocumentBuilder, rows: Sequence[Row], merges: Sequence[Merge] = ()) -> None:
    """Add the tables of a sheet.

    A new table begins after an empty row if a row of column names follows, with numbers below it.

    Args:
        rows: The rows that are not empty.
        merges: The merged cells. Their text has already been copied to every cell that they cover.
    """
    starts = [0, *(place for place in range(1, len(rows)) if _begins_table(rows, place)), len(rows)]
    for first, last in pairwise(starts):
        for left, right in _columns_of_tables(rows[first:last]):
            own = {place: part for place in range(first, last) if (part := _part(rows[place], left, right))}
            places = [*own]
            inside = (each for each in merges if first <= each.top < last and left <= each.left + 1 <= right)
            shifted = (
                replace(each, top=bisect_left(places, each.top), bottom=bisect_right(places, each.bottom) - 1)
                for each in inside
            )
            _add_table(builder, [*own.values()], [*shifted])


def _columns_of_tables(rows: Sequence[Row]) -> list[tuple[int, int]]:
    """Return the first and the last column of each table, if tables are side by side with a gap between them.

    Each of these tables has several columns, and its first column names its rows. Its rows differ
    from the rows of the table to its left.
    """
    if all(map(str.strip, next((row.cells for row in rows if sum(map(bool, row.cells)) > 1), ()))):
        return [(1, sys.maxsize)]  # its header has no gap
    filled_rows: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        for column, cell in enumerate(row.cells if sum(map(bool, row.cells)) > 1 else (), row.column):
            if cell.strip():
                filled_rows.setdefault(column, []).append(place)
    columns = sorted(filled_rows)
    breaks = [at for at in range(1, len(columns)) if columns[at] > columns[at - 1] + 1]
    tables = [columns[start:end] for start, end in pairwise([0, *breaks, len(columns)])]
    places = [{place for column in table for place in filled_rows[column]} for table in tables]
    names = ([rows[at].cells[table[0] - rows[at].column] for at in filled_rows[table[0]][1:]] for table in tables[1:])
    are_separate = all(len(table) > 1 for table in tables) and all(one != other for one, other in pairwise(places))
    if len(tables) < 2 or not are_separate or any(any(map(is_number, own)) or len({*own}) < len(own) for own in names):
        return [(1, sys.maxsize)]
    return [(table[0], table[-1]) for table in tables]


def _part(row: Row, left: int, right: int) -> Row | None:
    """Return the cells of a row from column ``left`` to column ``right``; None if all of them are empty."""
    if right == sys.maxsize:
        return row
    cells = [""] * (row.column - 1) + [*row.cells]
    return next(filled([(row.number, [""] * (left - 1) + cells[left - 1 : right])], row.place), None)


def _begins_table(rows: Sequence[Row], place: int) -> bool:
    if rows[place].number == rows[place - 1].number + 1:
        return False
    place += len(rows[place].cells) == 1  # a title
    header, below = (rows[at].cells if at < len(rows) else () for at in (place, place + 1))
    return len(header) > 1 and any(map(is_number, below)) and not any(map(is_number, header))


def _add_table(builder: DocumentBuilder, rows: Sequence[Row], merges: Sequence[Merge]) -> None:
    """Add a table. Rows above the header with only one value become text; several header rows are joined."""
    several = (place for place, row in enumerate(rows[:_MOST_TITLES]) if sum(map(bool, row.cells)) > 1)
    first = next(several, 0)
    for row in rows[:first]:
        builder.add(" ".join(" ".join(row.cells).split()), row.place(row.number, row.column, row.column))
    below = [replace(each, top=each.top - first, bottom=each.bottom - first) for each in merges if each.top >= first]
    top = [[""] * (row.column - 1) + [*row.cells] for row in rows[first : first + _MOST_TITLES]]
    if (count := count_header_rows(top, below)) > 1:
        names = joined_header(top[:count])
        column = next(at for at, name in enumerate(names, 1) if name)
        rows = [*rows[:first], replace(rows[first], column=column, cells=names[column - 1 :]), *rows[first + count :]]
    builder.add_table(_cut(rows[first:]))


def _cut(rows: Iterable[Row]) -> Iterator[tuple[Sequence[str], dict[str, str]]]:
    """Yield the cells and the place of each row, padded to the columns of the first row."""
    left = right = 0
    for row in rows:
        last = row.column + len(row.cells) - 1
        left, right = left or row.column, right or last
        begin, end = min(left, row.column), max(right, last)
        padded = [""] * (row.column - begin) + list(row.cells) + [""] * (end - last)
        yield padded, row.place(row.number, begin, end)


def filled(rows: Iterable[tuple[int, Sequence[str]]], place: Place) -> Iterator[Row]:
    """Yield a `Row` for each row that is not empty. ``rows`` are pairs of a row's number and its cells."""
    for number, cells in rows:
        columns = [column for column, value in enumerate(cells) if value.strip()]
        if columns:
            yield Row(number, columns[0] + 1, cells[columns[0] : columns[-1] + 1], place)


def _csv_rows(text: str, source: str) -> Iterator[list[str]]:
    named = _NAMED_DELIMITER.match(text)
    text = text[named.end() :] if named else text
    is_tabbed = source.lower().endswith((".tsv", ".tab"))
    delimiter = named[1] if named else "\t" if is_tabbed else _delimiter(text[:65_536])
    return csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)


def _delimiter(sample: str) -> str:
    """Return the delimiter that splits most of the first lines into the same number of values."""
    best = (0, ",")
    for delimiter in (",", ";", "\t", "|"):
        rows = list(csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter))[:20]
        widths = [len(row) for row in rows if row]
        common = max(set(widths), key=widths.count, default=1)
        if common > 1:
            best = max(best, (widths.count(common), delimiter), key=lambda pair: pair[0])
    return best[1]
