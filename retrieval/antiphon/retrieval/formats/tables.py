"""Read tables: Excel workbooks with openpyxl, and files of comma- or tab-separated values."""

from __future__ import annotations

import csv
import datetime
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from antiphon.retrieval.document import Document
from antiphon.retrieval.formats.document_builder import DocumentBuilder
from antiphon.retrieval.formats.office import PARSER_ERRORS, open_office, title_of
from antiphon.retrieval.formats.text import decode

MAX_SHEETS = 1000
MAX_CELLS = 5_000_000
_MAX_ROWS = 2_000_000  # rows including empty ones
_MOST_TITLES = 10  # rows above the header of a table
_MAX_FIELD = 1_000_000  # characters of one value


def read_excel_document(data: bytes, source: str) -> Document:
    """Read a workbook: one table per sheet, with the values that Excel showed last; hidden sheets are left out.

    The place of a passage is its sheet and its range of cells.

    Raises:
        ValueError: The file is damaged, encrypted, or exceeds the limits.
    """
    from openpyxl import load_workbook

    archive = open_office(data, "an Excel workbook", "xl/workbook.xml")
    sheets = sum(name.startswith("xl/worksheets/sheet") for name in archive.namelist())
    if sheets > MAX_SHEETS:
        raise ValueError(f"it has {sheets:,} sheets; at most {MAX_SHEETS:,} are read")
    builder = DocumentBuilder()
    try:
        workbook = load_workbook(io.BytesIO(data), read_only=True, data_only=True, keep_links=False)
        counter = _Counter()
        for sheet in workbook.worksheets:
            if sheet.sheet_state == "visible":
                sheet.reset_dimensions()  # the size that the file states can be wrong
                builder.add_heading(sheet.title, 1, {"sheet": sheet.title})
                _add_table(builder, _sheet_rows(sheet, counter))
    except PARSER_ERRORS as error:
        known = isinstance(error, _TooLargeError)
        raise ValueError(
            str(error) if known else f"it is not a readable workbook ({type(error).__name__}: {error})"
        ) from error
    return builder.build(source, {"title": title_of(archive)})


def read_csv_document(data: bytes, source: str) -> Document:
    """Read comma-, semicolon-, tab- or bar-separated values as one table; the place of a passage is its rows.

    Raises:
        ValueError: The bytes cannot be decoded, or exceed the limits.
    """
    text = decode(data).removeprefix("\ufeff")
    csv.field_size_limit(max(csv.field_size_limit(), _MAX_FIELD))
    builder, counter = DocumentBuilder(), _Counter()
    rows = _filled(_csv_rows(text, source), lambda number, first, last: {"rows": str(number)}, counter)
    try:
        _add_table(builder, rows)
    except csv.Error as error:
        raise ValueError(f"it is not a readable table ({error})") from error
    return builder.build(source)


_Place = Callable[[int, int, int], dict[str, str]]
"""Called with the number of a row and of its first and last column, from 1."""


@dataclass(frozen=True, slots=True)
class _Row:
    """The cells of a row from the first to the last that is not empty; numbers count from 1."""

    number: int
    column: int
    cells: Sequence[str]
    place: _Place


class _TooLargeError(ValueError):
    """A table exceeds the limits."""


class _Counter:
    """Counts rows and cells, and refuses too many."""

    def __init__(self) -> None:
        self._rows = self._cells = 0

    def add(self, cells: int) -> None:
        self._rows += 1
        self._cells += cells
        if self._cells > MAX_CELLS or self._rows > _MAX_ROWS:
            raise _TooLargeError(f"it has more than {MAX_CELLS:,} cells or {_MAX_ROWS:,} rows")


def _add_table(builder: DocumentBuilder, rows: Iterator[_Row]) -> None:
    """Add a table; rows with one value above its header are text."""
    first = list(islice(rows, _MOST_TITLES))
    header = next((place for place, row in enumerate(first) if sum(map(bool, row.cells)) > 1), 0)
    for row in first[:header]:
        builder.add(" ".join(" ".join(row.cells).split()), row.place(row.number, row.column, row.column))
    builder.add_table(_cut(chain(first[header:], rows)))


def _cut(rows: Iterable[_Row]) -> Iterator[tuple[Sequence[str], dict[str, str]]]:
    """Yield the cells and the places of rows; the header says where the table begins and how wide it is."""
    left = right = 0
    for row in rows:
        last = row.column + len(row.cells) - 1
        left, right = left or row.column, right or last
        begin, end = min(left, row.column), max(right, last)
        padded = [""] * (row.column - begin) + list(row.cells) + [""] * (end - last)
        yield padded, row.place(row.number, begin, end)


def _sheet_rows(sheet: Any, counter: _Counter) -> Iterator[_Row]:
    from openpyxl.utils import get_column_letter

    def place(number: int, first: int, last: int) -> dict[str, str]:
        left, right = get_column_letter(first), get_column_letter(last)
        return {"sheet": sheet.title, "cells": f"{left}{number}:{right}{number}"}

    return _filled(([_shown(value) for value in row] for row in sheet.iter_rows(values_only=True)), place, counter)


def _filled(rows: Iterable[list[str]], place: _Place, counter: _Counter) -> Iterator[_Row]:
    """Yield the rows that are not empty, without the empty cells around them; empty rows are counted."""
    for number, row in enumerate(rows, 1):
        counter.add(len(row))
        filled = [column for column, value in enumerate(row) if value.strip()]
        if filled:
            yield _Row(number, filled[0] + 1, row[filled[0] : filled[-1] + 1], place)


def _csv_rows(text: str, source: str) -> Iterator[list[str]]:
    sample = text[:65_536]
    delimiter = "\t" if source.lower().endswith((".tsv", ".tab")) else _delimiter(sample)
    return csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)


def _delimiter(sample: str) -> str:
    """Return the delimiter that splits the first lines into the same number of values, at least two."""
    best = (0, ",")
    for delimiter in (",", ";", "\t", "|"):
        rows = list(csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter))[:20]
        widths = [len(row) for row in rows if row]
        common = max(set(widths), key=widths.count, default=1)
        if common > 1:
            best = max(best, (widths.count(common), delimiter), key=lambda pair: pair[0])
    return best[1]


def _shown(value: object) -> str:
    """Return a cell's value as text: whole numbers without a fraction, dates in ISO 8601."""
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, datetime.datetime):
        return value.date().isoformat() if value.time() == datetime.time() else value.isoformat(" ", "seconds")
    return str(value)
