"""Tables of figures for the terminal: text wraps, a number never does, and a table too wide is set as several.

Knows how figures look and not what they mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.box import HEAVY_HEAD, SIMPLE, Box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from antiphon.pipelines.rendering.visible import visible

_NUMBER = re.compile(r"[\d.,:/×%e+< -]*")
_NARROWEST = 14  # characters that a column of text is left with before a table is set as several
_FRAME = 3  # what a column takes beside its cells: two blanks and a line


@dataclass(frozen=True, slots=True)
class _Column:
    heading: str
    cells: tuple[str, ...]

    @property
    def is_text(self) -> bool:
        return not all(_NUMBER.fullmatch(cell) for cell in self.cells)

    @property
    def least(self) -> int:
        """The least width in which no number and no word of the heading is broken."""
        words = [len(word) for text in (self.heading, *self.cells) for word in text.split()]
        if self.is_text:
            return min(_NARROWEST, max(words, default=1))
        return max([*(len(word) for word in self.heading.split()), *(len(cell) for cell in self.cells)], default=1)

    @property
    def natural(self) -> int:
        """The width in which nothing wraps."""
        lines = (line for text in (self.heading, *self.cells) for line in text.splitlines())
        return max(self.least, max(map(len, lines), default=1))


@dataclass(frozen=True, slots=True)
class FigureTable:
    """A table that is as many tables under each other as the terminal is too narrow for, each with the first column."""

    title: str
    columns: tuple[_Column, ...]
    box: Box
    caption: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The tables, the title above the first and the caption below the last."""
        tables = list(self._tables(options.max_width))
        tables[0].title = _line(self.title, "table.title") if self.title else None
        tables[-1].caption = _line(self.caption, "table.caption") if self.caption else None
        yield from tables

    def _tables(self, width: int) -> Iterator[Table]:
        first, *rest = self.columns
        while True:
            taken, free = [first], width - 1 - first.least - _FRAME
            while rest and (len(taken) == 1 or rest[0].least + _FRAME <= free):
                free -= rest[0].least + _FRAME
                taken.append(rest.pop(0))
            yield self._table(taken, free)
            if not rest:
                return

    def _table(self, columns: Sequence[_Column], free: int) -> Table:
        """The table of these columns; what is ``free`` beside their least widths goes to the narrowest first."""
        widths = {}
        for column in sorted(columns, key=lambda column: column.natural):
            wider = max(0, min(column.natural - column.least, free))
            widths[id(column)], free = column.least + wider, free - wider
        table = Table(box=self.box)
        for column in columns:
            justify: Literal["left", "right"] = "left" if column.is_text else "right"
            table.add_column(Text(column.heading), justify=justify, overflow="fold", width=widths[id(column)])
        for row in zip(*(column.cells for column in columns), strict=True):
            table.add_row(*map(Text, row))
        return table


def _line(text: str, style: str) -> Text:
    return Text(visible(text), style=style, no_wrap=False, overflow="fold")


def figure_table(
    title: str,
    columns: Mapping[str, str],
    figures: Sequence[Mapping[str, Any]],
    *,
    is_open: bool = False,
    caption: str = "",
) -> FigureTable:
    """One row for each mapping and one column for each key that ``columns`` has a heading for; texts stand left.

    Numbers are written as `shown_figure` says. With ``is_open`` the table has no lines around it.
    """
    made = (
        _Column(visible(heading), tuple(visible(shown_figure(figure[key])) for figure in figures))
        for key, heading in columns.items()
    )
    return FigureTable(title, tuple(made), SIMPLE if is_open else HEAVY_HEAD, caption)


def fact_card(title: str | Text, facts: Mapping[str, str]) -> Table:
    """What is known of one thing: names at the left, and what is known beside them, in as many lines as it needs."""
    card = Table(title=title, title_justify="left", box=SIMPLE, show_header=False)
    card.add_column(style="cyan", no_wrap=True, min_width=max(map(len, facts)))
    card.add_column(overflow="fold")
    for name, fact in facts.items():
        card.add_row(name, Text(visible(fact)))
    return card


def shown_figure(value: float | str | None) -> str:
    """A figure as people read it: three decimals, or commas at the thousands; a text as it is."""
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    return f"{value:.3f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
