"""The rows of grid tables and simple tables of reStructuredText, read with the parsers of docutils."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from antiphon.retrieval.block import Span

TableRow = tuple[str, Span]
"""The cells of a row, between bars, and the place of its lines in the table."""

_BORDER = re.compile(r"[-=+|\s]*")


def rst_table_rows(table: str) -> tuple[list[TableRow], list[TableRow]]:
    """Return the header rows of a table and its other rows; the lines of a cell are one text.

    Of a table that docutils cannot parse, such as a part of one, each line is a row.
    """
    from docutils.parsers.rst.tableparser import GridTableParser, SimpleTableParser, TableMarkupError
    from docutils.statemachine import StringList

    lines = textwrap.dedent(table).splitlines()
    starts = [0]
    for line in table.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    parser = GridTableParser() if lines and lines[0].startswith("+") else SimpleTableParser()
    while lines and not lines[-1].strip():
        lines.pop()
    try:
        _, header, body = parser.parse(StringList(lines, "table"))
    except (TableMarkupError, IndexError, ValueError):
        plain = [number for number, line in enumerate(lines) if not _BORDER.fullmatch(line)]
        return [], [(_cells([lines[number]]), (starts[number], starts[number + 1])) for number in plain]
    return [*_rows(header, starts)], [*_rows(body, starts)]


def _rows(rows: Sequence[Sequence[Any]], starts: Sequence[int]) -> Iterator[TableRow]:
    """Yield the rows; docutils gives of each cell the further rows and columns that it spans, its line and its text."""
    for row in rows:
        cells = [(cell[2], [str(line) for line in cell[3]]) for cell in row if cell is not None]
        if text := _cells([" ".join(lines) for _, lines in cells]):
            first = min(line for line, _ in cells)
            last = max(line + max(len(lines), 1) for line, lines in cells)
            yield text, (starts[first], starts[min(last, len(starts) - 1)])


def _cells(cells: Sequence[str]) -> str:
    words = [" ".join(cell.replace("|", " ").split()) for cell in cells]
    return " | ".join(words) if any(words) else ""
