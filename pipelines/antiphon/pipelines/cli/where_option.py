"""The option `--where` of the commands that answer questions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="FIELD=VALUE",
        help="Search only passages whose metadata have this value, such as lang=de or source=notes/keys.md; a value of "
        'JSON is a number, true, false, null or a "text". Or a whole filter in JSON. If repeated, all must match.',
    ),
]


def where_filter(given: Sequence[str] | None) -> dict[str, Any] | None:
    """Parse the values of the option; return the filter, or None if there are none.

    Raises:
        ValueError: a value has no "=", is invalid JSON, or has an unknown operator.
        TypeError: the value of an operator has the wrong type.
    """
    from antiphon.retrieval.filters import parse_filter

    parts = [_part(each) for each in given or ()]
    if not parts:
        return None
    where = parts[0] if len(parts) == 1 else {"$and": parts}
    parse_filter(where)
    return where


def _part(given: str) -> dict[str, Any]:
    if given.lstrip().startswith("{"):
        try:
            return dict(json.loads(given))
        except ValueError as error:
            raise ValueError(f"--where {given!r} is not valid JSON: {error}.") from error
    name, equals, value = given.partition("=")
    if not equals or not name.strip():
        raise ValueError(f"--where is {given!r}; give FIELD=VALUE, such as lang=de, or a filter in JSON.")
    return {name.strip(): _value(value)}


def _value(given: str) -> Any:
    """Parse a JSON number, boolean, null or string; return anything else as text."""
    try:
        value = json.loads(given, parse_constant=lambda _: given)
    except ValueError:
        return given
    return given if isinstance(value, dict | list) else value
