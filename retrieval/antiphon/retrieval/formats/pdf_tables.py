"""Find tables on PDF pages: rows whose cells are in the same columns. A table may continue after a page break."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from antiphon.retrieval.formats.document_builder import table_row
from antiphon.retrieval.formats.merged_cells import is_number
from antiphon.retrieval.formats.pdf_layout import SOFT_HYPHEN, Line, rows_of

_LEAST_ROWS = 3
_NO_CELL = re.compile(
    r".*(?:(?:\. ?){4}|…{2})|(?:[^\w\s]|\d{1,3}[.)]|[a-z][.)])\Z"
)  # parts of tables of contents and of lists
_MOST_LINES = 2  # maximum number of further lines of a cell that have no cell next to them
_FARTHEST = 3.5  # maximum distance of two baselines, as a multiple of a row's height

Table = list[list[str]]
"""The cells of each row."""


def blocks_of(lines: Sequence[Line], columns: int = 0) -> Iterator[Sequence[Line] | str]:
    """Yield the tables of a page in Markdown, and the lines between them, in order.

    Args:
        lines: The lines of the page in reading order; each cell of a row is one line.
        columns: The number of columns of the table at the end of the previous page; 0 without one.
            Even a single row may continue that table.
    """
    rows = [*rows_of(lines)]
    prose: list[Line] = []
    first = 0
    while first < len(rows):
        table, after = _table(rows, first)
        is_rest = first == 0 and len(table[0]) == columns if table else False
        if len(table) >= _LEAST_ROWS or is_rest:
            if prose:
                yield prose
            yield _text(table)
            prose, first = [], after
        else:
            prose += rows[first]
            first += 1
    if prose:
        yield prose


def _table(rows: Sequence[Sequence[Line]], first: int) -> tuple[Table, int]:
    """Return the table that begins at a row (empty if none), and the index of the row after it."""
    spans = [(cell.left, cell.right) for cell in rows[first]]
    if len(spans) < 2 or any(_NO_CELL.match(cell.text) for cell in rows[first]):
        return [], first
    table: Table = []
    after, pending = first, list[tuple[int, str]]()
    for place in range(first, len(rows)):
        row = rows[place]
        in_order = len(row) == len(spans)  # even if numbers at the right of their column are not below its name
        places = [[at] if in_order else _columns(cell, spans) for at, cell in enumerate(row)]
        near = place == first or rows[place - 1][0].bottom - row[0].bottom < _FARTHEST * (row[0].top - row[0].bottom)
        if (
            not near
            or (len(row) == 1 and len(pending) == _MOST_LINES)
            or any(len(found) != 1 for found in places)
            or len({*map(tuple, places)}) < len(places)
        ):
            break
        if len(row) == 1:  # the next line of a cell, if more rows follow
            pending.append((places[0][0], row[0].text))
            continue
        for column, text in pending:
            table[-1][column] += text if table[-1][column].endswith(SOFT_HYPHEN) else f" {text}"
        pending.clear()
        cells = [""] * len(spans)
        for [column], cell in zip(places, row, strict=True):
            spans[column] = min(spans[column][0], cell.left), max(spans[column][1], cell.right)
            cells[column] = cell.text
        table.append(cells)
        after = place + 1
    return table, after


def _columns(cell: Line, spans: Sequence[tuple[float, float]]) -> list[int]:
    return [column for column, (left, right) in enumerate(spans) if cell.left < right and left < cell.right]


def _text(table: Table) -> str:
    """Return a table in Markdown. If the first row has no numbers, it is the header."""
    lines = [table_row(row) for row in table]
    if not any(map(is_number, table[0])):
        lines.insert(1, "|" + " --- |" * len(table[0]))
    return "\n".join(lines)
