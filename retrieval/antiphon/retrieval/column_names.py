"""Column names of tables, for passages that begin below the header of a table."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from antiphon.retrieval.block import Block, BlockKind
from antiphon.retrieval.segmentation import has_header_row

_BAR = re.compile(r"(?<!\\)\|")
_SEPARATOR = " | "
_MORE = "…"


@dataclass(frozen=True, slots=True)
class _Table:
    """The rows of a table below its header, as a span, and the names of the table's columns."""

    start: int
    end: int
    names: tuple[str, ...]


class ColumnNames:
    """The column names of all tables of a text.

    Args:
        max_tokens: Maximum tokens of a passage. If a passage begins with a whole row, column names
            take at most half of this number; further names are left out.
    """

    def __init__(self, text: str, count_tokens: Callable[[str], int], max_tokens: int, parts: Iterable[Block]) -> None:
        self._text = text
        self._count_tokens = count_tokens
        self._max_tokens = max_tokens
        self._most_names = max_tokens // 2
        found = (block for block in parts if block.kind is BlockKind.TABLE)
        self._tables = [table for block in found if (table := _table(text, block.start, block.end))]
        self._starts = [table.start for table in self._tables]
        self._tokens: dict[int, int] = {}

    def above(self, start: int, end: int) -> str:
        """Return the column names for ``text[start:end]``; "" if this span does not begin in a table.

        If the span is only a part of one row, the names of this part's columns are returned.
        """
        table = self._table_at(start)
        if table is None:
            return ""
        row = self._text.rfind("\n", 0, start) + 1, self._text.find("\n", start)
        row_end = row[1] if row[1] >= 0 else len(self._text)
        first, last, limit = 0, len(table.names), self._most_names
        if end <= row_end and (self._text[row[0] : start].strip("| \t") or self._text[end:row_end].strip("| \t")):
            inner = self._text[start:end]
            begin, stop = start + len(inner) - len(inner.lstrip("| \t")), end - len(inner) + len(inner.rstrip("| \t"))
            first, last = self._column(row[0], begin), self._column(row[0], stop) + 1
            limit = max(limit, self._max_tokens - self._count_tokens(self._text[start:end]))
        return self._shortened(table.names[first:last], limit)

    def tokens_above(self, start: int) -> int:
        """Return the number of tokens that are reserved for column names above a passage."""
        table = self._table_at(start)
        if table is None:
            return 0
        if table.start not in self._tokens:
            self._tokens[table.start] = min(self._count_tokens(_SEPARATOR.join(table.names)), self._most_names)
        return self._tokens[table.start]

    def _table_at(self, position: int) -> _Table | None:
        place = bisect_right(self._starts, position) - 1
        return self._tables[place] if place >= 0 and position < self._tables[place].end else None

    def _column(self, row: int, position: int) -> int:
        """Return the number, from 0, of the column at a position in a row."""
        before = self._text[row:position]
        bars = len(_BAR.findall(before))
        return max(0, bars - before.lstrip().startswith("|"))

    def _shortened(self, names: tuple[str, ...], limit: int) -> str:
        shown = _SEPARATOR.join(names)
        while self._count_tokens(shown) > limit and len(names) > 1:
            names = names[: len(names) * 3 // 4]
            shown = _SEPARATOR.join([*names, _MORE])
        return shown


def _table(text: str, start: int, end: int) -> _Table | None:
    """Return the table of a block, or None if it has no header with names."""
    if not has_header_row(text, start, end):
        return None
    header = text.index("\n", start)
    body = text.find("\n", header + 1, end)
    names = cells_of(text[start:header])
    return _Table(header + 1, end, names) if body >= 0 and any(names) else None


def cells_of(row: str) -> tuple[str, ...]:
    """Return the cells of a table row. Cells are separated by bars; a bar after a backslash is text."""
    inner = row.strip()
    inner = inner[1:] if inner.startswith("|") else inner
    inner = inner[:-1] if inner.endswith("|") and not inner.endswith("\\|") else inner
    return tuple(" ".join(cell.split()) for cell in _BAR.split(inner))
