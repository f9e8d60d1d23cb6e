"""Checks filters of passages that clients send, before an index evaluates them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from antiphon.pipelines.server.errors import ApiError, unsupported_parameter
from antiphon.retrieval import MetadataFilter
from antiphon.retrieval.filters import COMPARE, Comparison, Filter, parse_filter

MAX_CONDITIONS = 100
"""Maximum number of comparisons and operators in a filter; databases limit the depth of an expression."""

MAX_DEPTH = 16
"""Maximum nesting depth of $and, $or and $not; databases limit the depth, too."""

MAX_INTEGER = 2**63 - 1
"""The largest integer of a database."""


def check_filter(where: MetadataFilter | None) -> None:
    """Refuse a filter that an index cannot evaluate, or whose results would reveal the path of a document.

    Clients see the names of indexed files but not their folders. Comparisons of ``source`` such as ``$gt`` would
    reveal a folder letter by letter.

    Raises:
        ApiError: 400, the filter is invalid or too large, or compares ``source`` by order (such as
            ``$gt``).
    """
    try:
        conditions = list(_conditions(parse_filter(where)))
    except (ValueError, TypeError) as error:
        raise ApiError(400, str(error), param="where") from error
    except RecursionError as error:
        raise _too_deep() from error
    if len(conditions) > MAX_CONDITIONS:
        message = f"where has {len(conditions)} comparisons and operators; the limit is {MAX_CONDITIONS}."
        raise unsupported_parameter("where", message)
    for each in conditions:
        if not isinstance(each, Comparison):
            continue
        if each.name == "source" and each.operator in COMPARE:
            raise unsupported_parameter("where", f"where compares source with {each.operator}; use $eq, $ne or $in.")
        if any(abs(number) > MAX_INTEGER for number in _integers(each.value)):
            raise unsupported_parameter("where", f"where has an integer of more than 64 bits (for {each.name!r}).")


def _conditions(condition: Filter | None) -> Iterator[Filter]:
    """Yield the comparisons and operators of a filter, level by level."""
    level = [] if condition is None else [condition]
    for depth in count():
        if not level:
            return
        if depth > MAX_DEPTH:
            raise _too_deep()
        yield from level
        level = [part for each in level if not isinstance(each, Comparison) for part in each.parts]


def _too_deep() -> ApiError:
    message = f"where is nested too deeply; the limit is {MAX_DEPTH} of $and, $or and $not in each other."
    return unsupported_parameter("where", message)


def _integers(value: Any) -> Iterator[int]:
    """Return the integers in a value of JSON."""
    if isinstance(value, int):
        yield value
    for part in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
        yield from _integers(part)
