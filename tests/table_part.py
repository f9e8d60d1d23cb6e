"""Tables of parameters of which `make test` runs a part."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def part(table: Iterable[Any], usual: Collection[Any]) -> list[Any]:
    """Return a table of parameters for ``parametrize``; only `make test-exhaustive` runs rows that are not usual.

    Args:
        table: The rows; a row of several parameters is a tuple.
        usual: The rows that `make test` runs, each of which is in the table.
    """
    rows = list(table)
    if unknown := [row for row in usual if row not in rows]:
        raise ValueError(f"The table has no {unknown[0]!r}.")
    return [row if row in usual else _left_out(row) for row in rows]


def _left_out(row: Any) -> Any:
    values = row if isinstance(row, tuple) else (row,)
    return pytest.param(*values, marks=pytest.mark.exhaustive)
