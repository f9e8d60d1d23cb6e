"""Read Excel workbooks (xlsx) with openpyxl: what a reader of the visible sheets sees."""

from __future__ import annotations

import io
import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.retrieval.document import Document
from antiphon.retrieval.formats.document_builder import DocumentBuilder, listed
from antiphon.retrieval.formats.merged_cells import Merge, fill
from antiphon.retrieval.formats.number_format import shown
from antiphon.retrieval.formats.office import PARSER_ERRORS, open_office, title_of
from antiphon.retrieval.formats.tables import CellCounter, Row, TooLargeError, add_tables, filled

MAX_SHEETS = 1000
_NOT_CALCULATED = re.compile(
    rb"<(?:\w+:)?f\b(?:[^>]*/>|[^>]*>[^<]*</(?:\w+:)?f>)\s*(?:<(?:\w+:)?v\s*/>|<(?:\w+:)?v></|</(?:\w+:)?c>)"
)


def read_excel_document(data: bytes, source: str) -> Document:
    """Read a workbook: one table per sheet, with values as Excel shows them.

    Hidden sheets, rows and columns are left out. The document's warnings report these, formulas
    that were never calculated, damaged sheets, and content outside of cells. The place of a passage
    is its sheet and its range of cells.

    Raises:
        ValueError: The file is damaged, encrypted, or exceeds the limits.
    """
    from openpyxl import load_workbook

    office = open_office(data, "an Excel workbook", "xl/workbook.xml")
    sheets = sum(name.startswith("xl/worksheets/sheet") for name in office.archive.namelist())
    if sheets > MAX_SHEETS:
        raise ValueError(f"it has {sheets:,} sheets; at most {MAX_SHEETS:,} are read")
    builder, counter = DocumentBuilder(), CellCounter()
    warnings = office.warnings
    try:
        workbook = load_workbook(io.BytesIO(office.data), read_only=True, data_only=True, keep_links=False)
    except PARSER_ERRORS as error:
        raise ValueError(f"it is not a readable workbook ({type(error).__name__}: {error})") from error
    for sheet in workbook.worksheets:
        if sheet.sheet_state != "visible":
            warnings.append(f"its hidden sheet {sheet.title!r} was not read")
            continue
        builder.add_heading(sheet.title, 1, {"sheet": sheet.title})
        add_tables(builder, *_rows(sheet, counter, warnings))
    return builder.build(source, {"title": title_of(office.archive)}, warnings)


def _rows(sheet: Any, counter: CellCounter, warnings: list[str]) -> tuple[list[Row], list[Merge]]:
    """Return the visible rows and the merged cells of a sheet; add sentences about missing content to ``warnings``."""
    from openpyxl.cell.read_only import ReadOnlyCell
    from openpyxl.utils import get_column_letter
    from openpyxl.worksheet._reader import WorkSheetParser

    with sheet._get_source() as file:
        xml = file.read()
    book, rows = sheet.parent, dict[int, list[str]]()
    formats = {"date_formats": book._date_formats, "timedelta_formats": book._timedelta_formats}
    parser = WorkSheetParser(io.BytesIO(xml), sheet._shared_strings, data_only=True, epoch=book.epoch, **formats)
    try:
        for number, cells in parser.parse():
            rows[number] = [""] * max((cell["column"] for cell in cells), default=0)
            counter.add(len(rows[number]))
            for cell in cells:
                rows[number][cell["column"] - 1] = shown(cell["value"], ReadOnlyCell(sheet, **cell).number_format)
    except TooLargeError:
        raise
    except PARSER_ERRORS as error:
        warnings.append(f"its sheet {sheet.title!r} is damaged below row {max(rows, default=0)} ({error})")
    if count := len(_NOT_CALCULATED.findall(xml)):
        warnings.append(f"its sheet {sheet.title!r} has {count} formulas that were not calculated: save it in Excel")
    # 1. Copy the text of merged cells to all rows and columns that they cover.
    width = max(map(len, rows.values()), default=0)
    fill([*rows.values()], _merges(parser, [*rows], range(1, width + 1)))
    # 2. Leave out hidden rows and columns, and report them if they contain text.
    dimensions = parser.column_dimensions.values()
    spans = [range(int(each["min"]), int(each["max"]) + 1) for each in dimensions if _is_hidden(each)]
    hidden = {number for number in rows if _is_hidden(parser.row_dimensions.get(str(number), {})) and any(rows[number])}
    lost = [at for at in range(1, width + 1) if any(at in span for span in spans)]
    lost = [at for at in lost if any(row[at - 1 : at] not in ([], [""]) for row in rows.values())]
    for kind, names in (("rows", [*hidden]), ("columns", [*map(get_column_letter, lost)])):
        if names:
            warnings.append(f"its sheet {sheet.title!r} has hidden {kind}, which were not read: {listed(names)}")
    columns = [at for at in range(1, width + 1) if at not in lost]
    visible = [
        (number, [row[at - 1] for at in columns if at <= len(row)])
        for number, row in rows.items()
        if number not in hidden
    ]

    def place(number: int, first: int, last: int) -> dict[str, str]:
        left, right = (get_column_letter(columns[at - 1]) for at in (first, last))
        return {"sheet": sheet.title, "cells": f"{left}{number}:{right}{number}"}

    found = [*filled(visible, place)]
    return found, _merges(parser, [row.number for row in found], columns)


def _merges(parser: Any, numbers: Sequence[int], columns: Sequence[int]) -> list[Merge]:
    """Return the merged cells of a sheet as indices into ``numbers`` (of rows) and ``columns``."""
    from openpyxl.utils.cell import range_boundaries

    merges = []
    for cell in getattr(parser.merged_cells, "mergeCell", ()):
        left, top, right, bottom = range_boundaries(cell.ref)
        rows = bisect_left(numbers, top), bisect_right(numbers, bottom) - 1
        merges.append(Merge(rows[0], bisect_left(columns, left), rows[1], bisect_right(columns, right) - 1))
    return [each for each in merges if each.top <= each.bottom and each.left <= each.right]


def _is_hidden(attributes: Mapping[str, str]) -> bool:
    return attributes.get("hidden") in ("1", "true") or "0" in (attributes.get("width"), attributes.get("ht"))
