"""Treat merged cells and several header rows of tables in the same way for all formats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Merge:
    """A cell that covers several rows or columns of a table. Indices are from 0 and inclusive."""

    top: int
    left: int
    bottom: int
    right: int


def fill(rows: Sequence[list[str]], merges: Iterable[Merge]) -> None:
    """Repeat the text of merged cells in all rows and columns that they cover; rows become as wide as needed.

    A cell that stands alone in its row, such as a title across the table, is not repeated to its right.
    """
    for each in merges:
        if each.top < len(rows) and each.left < len(rows[each.top]) and (text := rows[each.top][each.left]):
            for row in rows[each.top : each.bottom + 1]:
                row += [""] * (each.left + 1 - len(row))
                is_alone = not any(cell.strip() for cell in (*row[: each.left], *row[each.right + 1 :]))
                last = each.left if is_alone else each.right
                row[each.left : last + 1] = [text] * (last + 1 - each.left)


def count_header_rows(rows: Sequence[Sequence[str]], merges: Sequence[Merge], count: int = 1) -> int:
    """Return the number of header rows of a table whose merged cells have been filled.

    The header continues as long as a merged cell also covers the next row, or has several names
    below it.

    Args:
        count: The number of rows that are known to be headers.
    """
    while count < len(rows) - 1:
        inside = [each for each in merges if each.top < count]
        wide = [each for each in inside if each.top <= count - 1 <= each.bottom and each.right > each.left]
        below = [*rows[count]]
        others = [cell for at, cell in enumerate(below) if not any(each.left <= at <= each.right for each in inside)]
        differs = any(len({*below[each.left : each.right + 1]} - {""}) > 1 for each in wide)
        has_names = differs and not any(map(is_number, below))
        is_header = has_names and (not any(map(str.strip, others)) or any(map(is_number, rows[count + 1])))
        if not is_header and not any(each.bottom >= count for each in inside):
            break
        count += 1
    return count


def with_joined_header(rows: Sequence[list[str]], merges: Sequence[Merge], count: int = 1) -> list[list[str]]:
    """Return the rows of a table with filled merged cells and one header row; ``count`` as for `count_header_rows`."""
    fill(rows, merges)
    count = count_header_rows(rows, merges, count) if count else 0
    return [*([joined_header(rows[:count])] * bool(count)), *rows[count:]]


def joined_header(rows: Sequence[Sequence[str]]) -> list[str]:
    """Join all header rows into column names: ``2023`` above ``Budget`` is ``2023 Budget``."""
    width = max(map(len, rows), default=0)
    columns = ([" ".join(row[at].split()) for row in rows if at < len(row)] for at in range(width))
    return [" ".join(dict.fromkeys(filter(None, column))) for column in columns]


def is_number(cell: str) -> bool:
    """Return whether a cell begins with a number, such as an amount or a date."""
    return any(map(str.isdecimal, cell[:4])) and not any(map(str.isalpha, cell[:1]))
