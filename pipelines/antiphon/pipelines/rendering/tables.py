"""Tables of results for the terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import HEAVY_HEAD, SIMPLE
from rich.table import Table
from rich.text import Text

from antiphon.pipelines.rendering.sanitize import sanitize

_NUMBER = re.compile(r"[\d.,:/×%e+< -]*")


def result_table(
    title: str,
    columns: Mapping[str, str],
    rows: Sequence[Mapping[str, Any]],
    *,
    is_open: bool = False,
    caption: str = "",
) -> Table:
    """Return a table with one row for each mapping; columns of numbers are right-aligned."""
    table = Table(
        title=Text(sanitize(title)) if title else None,
        caption=Text(sanitize(caption)) if caption else None,
        box=SIMPLE if is_open else HEAVY_HEAD,
    )
    for key, heading in columns.items():
        is_number = all(_NUMBER.fullmatch(format_value(row[key])) for row in rows)
        justify: Any = "right" if is_number else "left"
        table.add_column(Text(sanitize(heading)), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(Text(sanitize(format_value(row[key]))) for key in columns))
    return table


def property_card(title: str | Text, properties: Mapping[str, str]) -> Table:
    """Return a two-column table of the properties of one thing; long values wrap."""
    card = Table(title=title, title_justify="left", box=SIMPLE, show_header=False)
    card.add_column(style="cyan", no_wrap=True, min_width=max(map(len, properties)))
    card.add_column(overflow="fold")
    for name, value in properties.items():
        card.add_row(name, Text(sanitize(value)))
    return card


def format_value(value: float | str | None) -> str:
    """Format floats with three decimals and integers with thousands separators."""
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    return f"{value:.3f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
