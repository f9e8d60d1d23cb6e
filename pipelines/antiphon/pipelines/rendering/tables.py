"""Tables of results for the terminal: text wraps, numbers never do, and a table that is too wide is split."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.box import HEAVY_HEAD, SIMPLE, Box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from antiphon.pipelines.rendering.sanitize import sanitize

_NUMBER = re.compile(r"[\d.,:/×%e+< -]*")
_MIN_TEXT_WIDTH = 14  # minimum characters of a text column before a table is split
_FRAME = 3  # characters of a column's frame: two blanks and a line


@dataclass(frozen=True, slots=True)
class _Column:
    heading: str
    cells: tuple[str, ...]

    @property
    def is_text(self) -> bool:
        return not all(_NUMBER.fullmatch(cell) for cell in self.cells)

    @property
    def min_width(self) -> int:
        """The minimum width at which no number and no word of the heading is broken."""
        words = [len(word) for text in (self.heading, *self.cells) for word in text.split()]
        if self.is_text:
            return min(_MIN_TEXT_WIDTH, max(words, default=1))
        return max([*(len(word) for word in self.heading.split()), *(len(cell) for cell in self.cells)], default=1)

    @property
    def natural_width(self) -> int:
        """The width at which nothing wraps."""
        lines = (line for text in (self.heading, *self.cells) for line in text.splitlines())
        return max(self.min_width, max(map(len, lines), default=1))


@dataclass(frozen=True, slots=True)
class ResultTable:
    """A table that is split into several, each with the first column, if the terminal is too narrow.

    Attributes:
        title: shown above the first part.
        columns: the columns.
        box: the style of the frame.
        caption: shown below the last part.
    """

    title: str
    columns: tuple[_Column, ...]
    box: Box
    caption: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the parts."""
        tables = list(self._tables(options.max_width))
        tables[0].title = _line(self.title, "table.title") if self.title else None
        tables[-1].caption = _line(self.caption, "table.caption") if self.caption else None
        yield from tables

    def _tables(self, width: int) -> Iterator[Table]:
        first, *rest = self.columns
        while True:
            chosen, free = [first], width - 1 - first.min_width - _FRAME
            while rest and (len(chosen) == 1 or rest[0].min_width + _FRAME <= free):
                free -= rest[0].min_width + _FRAME
                chosen.append(rest.pop(0))
            yield self._table(chosen, free)
            if not rest:
                return

    def _table(self, columns: Sequence[_Column], free: int) -> Table:
        """Return a table of these columns; ``free`` characters are distributed, to the narrowest columns first."""
        widths = {}
        for column in sorted(columns, key=lambda column: column.natural_width):
            wider = max(0, min(column.natural_width - column.min_width, free))
            widths[id(column)], free = column.min_width + wider, free - wider
        table = Table(box=self.box)
        for column in columns:
            justify: Literal["left", "right"] = "left" if column.is_text else "right"
            table.add_column(Text(column.heading), justify=justify, overflow="fold", width=widths[id(column)])
        for row in zip(*(column.cells for column in columns), strict=True):
            table.add_row(*map(Text, row))
        return table


def _line(text: str, style: str) -> Text:
    return Text(sanitize(text), style=style, no_wrap=False, overflow="fold")


def result_table(
    title: str,
    columns: Mapping[str, str],
    rows: Sequence[Mapping[str, Any]],
    *,
    is_open: bool = False,
    caption: str = "",
) -> ResultTable:
    """Return a table with one row for each mapping; text columns are left-aligned.

    Args:
        title: the title.
        columns: the heading of each key of the rows.
        rows: the rows; values are formatted by `format_value`.
        is_open: omit the frame.
        caption: the caption.
    """
    made = (
        _Column(sanitize(heading), tuple(sanitize(format_value(row[key])) for row in rows))
        for key, heading in columns.items()
    )
    return ResultTable(title, tuple(made), SIMPLE if is_open else HEAVY_HEAD, caption)


def property_card(title: str | Text, properties: Mapping[str, str]) -> Table:
    """Return a two-column table of the properties of one thing.

    Args:
        title: the title.
        properties: values by name; long values wrap.
    """
    card = Table(title=title, title_justify="left", box=SIMPLE, show_header=False)
    card.add_column(style="cyan", no_wrap=True, min_width=max(map(len, properties)))
    card.add_column(overflow="fold")
    for name, value in properties.items():
        card.add_row(name, Text(sanitize(value)))
    return card


def format_value(value: float | str | None) -> str:
    """Format a value: floats with three decimals, integers with thousands separators, text unchanged."""
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    return f"{value:.3f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
