"""Convert metadata filters to SQL conditions for SQLite."""

from __future__ import annotations

import json
from typing import Any

from antiphon.retrieval.filters import Comparison, Filter, MetadataFilter, is_number, parse_filter

_SIGNS = {"$eq": "=", "$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
_FIELD = "exists (select 1 from json_each(metadata) field where field.key = ? and {test})"
_ITEM = "(({test}) or (field.type = 'array' and exists (select 1 from json_each(field.value) item where {item_test})))"


def sql_condition(where: MetadataFilter | None) -> tuple[str, tuple[Any, ...]]:
    """Return the SQL condition of a filter, and the values of its parameters.

    Raises:
        TypeError: A name or a value has the wrong type.
        ValueError: An operator is unknown.
    """
    condition = parse_filter(where)
    return ("true", ()) if condition is None else _sql(condition)


def _sql(condition: Filter) -> tuple[str, tuple[Any, ...]]:
    if isinstance(condition, Comparison):
        if condition.name != "source":
            return _field(condition)
        is_text = isinstance(condition.value, str)
        return (f"source {_SIGNS[condition.operator]} ?", (condition.value,)) if is_text else ("false", ())
    parts = [_sql(part) for part in condition.parts]
    values = tuple(value for _, own in parts for value in own)
    if condition.operator == "$not":
        return f"not ({parts[0][0]})", values
    word, empty = ("and", "true") if condition.operator == "$and" else ("or", "false")
    return (f"({f' {word} '.join(sql for sql, _ in parts)})" if parts else empty), values


def _field(condition: Comparison) -> tuple[str, tuple[Any, ...]]:
    name, value = condition.name, condition.value
    if value is None:
        missing = _FIELD.format(test="field.type <> 'null'")
        null_item = "field.type = 'array' and exists (select 1 from json_each(field.value) i where i.type = 'null')"
        return f"(not {missing} or {_FIELD.format(test=null_item)})", (name, name)
    if isinstance(value, list | dict):
        kind = "array" if isinstance(value, list) else "object"
        test = f"field.type = '{kind}' and field.value = json(?)"
        items = f"field.type = 'array' and exists (select 1 from json_each(field.value) i where i.type = '{kind}' and "
        text = json.dumps(value, ensure_ascii=False)
        return _FIELD.format(test=f"(({test}) or ({items} i.value = json(?))))"), (name, text, text)
    test = "{table}.type " + _type_test(value) + (f" and {{table}}.value {_SIGNS[condition.operator]} ?")
    both = _ITEM.format(test=test.format(table="field"), item_test=test.format(table="item"))
    return _FIELD.format(test=both), (name, value, value)


def _type_test(value: Any) -> str:
    if isinstance(value, bool):
        return "= 'true'" if value else "= 'false'"
    return "in ('integer', 'real')" if is_number(value) else "= 'text'"
