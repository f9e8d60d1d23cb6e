"""Filters on metadata. A filter is parsed once, and then translated for each kind of index."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from antiphon.retrieval.passage import Passage
from antiphon.retrieval.source_file import normalized_name

MetadataFilter = Mapping[str, Any]
"""A filter, such as ``{"lang": "de", "year": {"$gte": 2020}, "$or": [{"open": True}, {"tags": "new"}]}``.

All entries must match. The name in an entry is ``source`` or a metadata field. The value is the
expected value, or a dictionary of operators and operands. A field that contains a list matches if
one item of the list matches. None matches null and a missing field. Dates are compared as ISO 8601
texts, and numbers are never equal to booleans.
"""

EQUAL, IN, COMPARE = ("$eq", "$ne"), ("$in", "$nin"), ("$gt", "$gte", "$lt", "$lte")
OPERATORS = (*EQUAL, *IN, *COMPARE)
"""The operators that compare a field with a value."""

JUNCTIONS = ("$and", "$or", "$not")
"""The operators that combine filters."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison: a field, an operator (``$eq`` or one of `COMPARE`), and a value."""

    name: str
    operator: str
    value: Any


@dataclass(frozen=True, slots=True)
class Junction:
    """The operator ``$and``, ``$or`` or ``$not``, and the filters that it combines; ``$not`` has one filter."""

    operator: str
    parts: tuple[Filter, ...]


Filter = Comparison | Junction
"""A parsed filter."""


def parse_filter(where: Any) -> Filter | None:
    """Parse a `MetadataFilter`, or a filter of LlamaIndex or LangChain; return None if the filter accepts everything.

    Raises:
        TypeError: The filter or a name in it has the wrong type, or a value is not a JSON value or a date.
        ValueError: An operator is unknown; the message names the operator.
    """
    if where is None:
        return None
    where = as_mapping(where)
    if not isinstance(where, Mapping):
        raise TypeError(f"where is {type(where).__name__}; a dictionary of metadata names and values is needed.")
    parts = [part for name, value in where.items() for part in _entry(name, value)]
    return _joined("$and", parts) if parts else None


def json_value(value: Any, name: str = "value") -> Any:
    """Convert a metadata value for saving.

    Dates become ISO 8601 texts, sequences become lists, and NaN and infinity become None.

    Args:
        value: A JSON value, a date, a time, a number of NumPy, a tuple, a set, or any nesting of them.

    Raises:
        TypeError: The value has another type.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): json_value(inner, name) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_value(inner, name) for inner in value]
    if hasattr(value, "item") and hasattr(value, "dtype"):
        return json_value(value.item(), name)
    raise TypeError(f"The metadata {name!r} is {value!r} ({type(value).__name__}); JSON values and dates can be saved.")


def json_metadata(passage: Passage) -> dict[str, Any]:
    """Convert the metadata of a passage for saving.

    Raises:
        TypeError: A value is neither a JSON value nor a date.
    """
    return {str(name): json_value(value, str(name)) for name, value in passage.metadata.items()}


def is_number(value: Any) -> bool:
    """Return whether a value is a number, and not a boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _entry(name: Any, value: Any) -> Iterator[Filter]:
    if not isinstance(name, str):
        raise TypeError(f"where has the name {name!r}; names of metadata are texts.")
    if name in ("$and", "$or"):
        if not isinstance(value, list | tuple) or not value:
            raise TypeError(f"{name} is {value!r}; a list of at least one filter is needed.")
        parts = [parse_filter(each) for each in value]
        # A filter without conditions accepts everything.
        if name == "$and" or all(part is not None for part in parts):
            yield _joined(name, [part for part in parts if part is not None])
    elif name == "$not":
        yield Junction("$not", (parse_filter(value) or Junction("$and", ()),))
    elif name.startswith("$"):
        raise ValueError(f"There is no operator {name!r} for filters; there are {', '.join(JUNCTIONS)}.")
    elif isinstance(value, Mapping) and any(str(key).startswith("$") for key in value):
        for operator, operand in value.items():
            yield _comparison(name, str(operator), operand)
    else:
        yield _comparison(name, "$eq", value)


def _comparison(name: str, operator: str, operand: Any) -> Filter:
    if operator == "$not":
        return Junction("$not", (_joined("$and", list(_entry(name, operand))),))
    if operator not in OPERATORS:
        known = ", ".join((*OPERATORS, "$not"))
        raise ValueError(f"There is no operator {operator!r} (for {name!r}); there are {known}.")
    value = json_value(operand, name)
    if operator in IN:
        if not isinstance(value, list):
            raise TypeError(f"{operator} of {name!r} is {operand!r}; a list of values is needed.")
        found: Filter = Junction("$or", tuple(_comparison(name, "$eq", each) for each in value))
        return found if operator == "$in" else Junction("$not", (found,))
    if operator in COMPARE and not (is_number(value) or isinstance(value, str)):
        raise TypeError(f"{operator} of {name!r} is {operand!r}; a number, a text or a date is needed.")
    if operator == "$ne":
        return Junction("$not", (_comparison(name, "$eq", value),))
    asked: Filter = Comparison(name, operator, value)
    if name == "source" and operator == "$eq" and isinstance(value, str) and normalized_name(value) != value:
        return Junction("$or", (asked, Comparison(name, operator, normalized_name(value))))
    return asked


def _joined(operator: str, parts: list[Filter]) -> Filter:
    return parts[0] if len(parts) == 1 else Junction(operator, tuple(parts))


_LLAMA_INDEX = {
    "==": "$eq",
    "!=": "$ne",
    ">": "$gt",
    ">=": "$gte",
    "<": "$lt",
    "<=": "$lte",
    "in": "$in",
    "nin": "$nin",
    "any": "$in",
    "contains": "$eq",
}
_LANGCHAIN = {
    **{name: f"${name}" for name in ("eq", "ne", "gt", "gte", "lt", "lte", "in", "nin", "and", "or", "not")},
    "contain": "$eq",
}


def as_mapping(where: Any) -> Any:
    """Convert a filter of LlamaIndex or LangChain to a dictionary with operators; return anything else unchanged.

    Raises:
        ValueError: An operator of the filter is not supported; the message names the operator.
    """
    if isinstance(where, Mapping):
        return where
    if hasattr(where, "filters") and hasattr(where, "condition"):
        parts = [as_mapping(part) for part in where.filters]
        name = str(getattr(where.condition, "value", where.condition) or "and")
        joined = {"$or" if name == "or" else "$and": parts} if parts else {}
        return {"$not": joined} if name == "not" else joined
    if hasattr(where, "key") and hasattr(where, "operator"):
        return _of_llama_index(where.key, str(getattr(where.operator, "value", where.operator)), where.value)
    if hasattr(where, "comparator") and hasattr(where, "attribute"):
        return {where.attribute: {_known(_LANGCHAIN, where.comparator, where.attribute): where.value}}
    if hasattr(where, "arguments") and hasattr(where, "operator"):
        parts = [as_mapping(part) for part in where.arguments]
        operator = _known(_LANGCHAIN, where.operator, "")
        return {"$not": {"$and": parts}} if operator == "$not" else {operator: parts}
    return where


def _of_llama_index(key: str, operator: str, value: Any) -> dict[str, Any]:
    if operator == "all":
        return {"$and": [{key: {"$eq": each}} for each in value]}
    if operator == "is_empty":
        return {"$or": [{key: None}, {key: {"$eq": []}}]}
    return {key: {_known(_LLAMA_INDEX, operator, key): value}}


def _known(operators: Mapping[str, str], operator: Any, name: str) -> str:
    given = str(getattr(operator, "value", operator))
    if given not in operators:
        inside = f" (for {name!r})" if name else ""
        raise ValueError(f"The operator {given!r}{inside} is not supported; there are {', '.join(operators)}.")
    return operators[given]
