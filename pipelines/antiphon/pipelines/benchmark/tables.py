"""Tables of figures for the terminal. Knows how numbers look and not what they mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table


def table(title: str, columns: Mapping[str, str], figures: Sequence[Mapping[str, Any]]) -> Table:
    """One row for each mapping and one column for each key that ``columns`` has a heading for; texts stand left."""
    made = Table(title=title)
    for key, heading in columns.items():
        is_text = any(isinstance(each[key], str) for each in figures)
        made.add_column(heading, justify="left" if is_text else "right", no_wrap=is_text)
    for figure in figures:
        made.add_row(*(shown(figure[key]) for key in columns))
    return made


def shown(value: float | str | None) -> str:
    """A figure as people read it."""
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    return f"{value:.3f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
