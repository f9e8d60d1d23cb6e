"""Blocks of a text: fenced code, pipe tables, and the rest. Knows nothing of sentences, tokens or documents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_FENCE = re.compile(r"[ \t]*(?:>[ \t]*)?(`{3,}|~{3,})")
_ROW = re.compile(r"[ \t]*\|.*\|[ \t]*\r?\n?$")
_RULE = re.compile(r"[ \t]*\|(?:[ \t]*:?-+:?[ \t]*\|)+[ \t]*\r?\n?$")


class Kind(Enum):
    """What a block is."""

    TEXT = "text"
    CODE = "code"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Block:
    """The characters ``start`` to ``end`` of a text; a code block with its fences, one without an end to the last."""

    kind: Kind
    start: int
    end: int


def blocks(text: str, start: int = 0, end: int | None = None) -> Iterator[Block]:
    """The blocks of ``text[start:end]`` in order; together they hold all of it."""
    kind, first, fence = Kind.TEXT, start, ""
    for match in _LINE.finditer(text, start, len(text) if end is None else end):
        line, at = match[0], match.start()
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not line.strip(" \t\r\n>").strip(fence[0]):
                yield Block(Kind.CODE, first, match.end())
                kind, first, fence = Kind.TEXT, match.end(), ""
            continue
        now = Kind.CODE if mark else Kind.TABLE if _ROW.match(line) else Kind.TEXT
        if now is not kind or mark:
            if first < at:
                yield Block(kind, first, at)
            kind, first = now, at
            fence = mark[1] if mark else ""
    stop = len(text) if end is None else end
    if first < stop:
        yield Block(kind, first, stop)


def code_lines(code: str) -> list[str]:
    """The lines of a code block that are not empty, without its fences."""
    return [line for line in code.splitlines() if line.strip() and not _FENCE.match(line)]


def table_rows(table: str) -> tuple[str, list[str]]:
    """The row of column names, empty where the table begins without one, and the other rows, without outer pipes."""
    rows = [row for row in table.splitlines() if row.strip()]
    named = len(rows) > 1 and bool(_RULE.match(rows[1]))
    body = [row for row in rows[1 if named else 0 :] if not _RULE.match(row)]
    return _cells(rows[0]) if named else "", [_cells(row) for row in body]


def _cells(row: str) -> str:
    return row.strip().strip("|").strip()
