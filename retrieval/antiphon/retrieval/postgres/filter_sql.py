"""Convert metadata filters to SQL conditions for PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from antiphon.retrieval.filters import Comparison, Filter, is_number

_SIGNS = {"$eq": "=", "$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}


def sql_condition(condition: Filter, values: dict[str, Any]) -> str:
    """Convert a filter to an SQL condition, and add the condition's parameters to ``values``."""
    if not isinstance(condition, Comparison):
        parts = [f"({sql_condition(part, values)})" for part in condition.parts]
        if condition.operator == "$not":
            return f"not {parts[0]}"
        joined = " and ".join(parts) if condition.operator == "$and" else " or ".join(parts)
        return joined or ("true" if condition.operator == "$and" else "false")

    def parameter(value: Any) -> str:
        name = f"filter{len(values)}"
        values[name] = value
        return f"%({name})s"

    sign = _SIGNS[condition.operator]
    if condition.name == "source":
        is_text = isinstance(condition.value, str)
        return f'source collate "C" {sign} {parameter(condition.value)}' if is_text else "false"
    if condition.operator == "$eq":
        return _equality(condition, parameter)
    if is_number(condition.value):
        field, kind = "({field} #>> '{}')::numeric", "number"
    else:
        field, kind = "({field} #>> '{}') collate \"C\"", "string"
    wanted = parameter(condition.value)

    def test(json: str) -> str:
        compared = f"{field.replace('{field}', json)} {sign} {wanted}"
        return f"case jsonb_typeof({json}) when '{kind}' then {compared} else false end"

    json = f"metadata -> {parameter(condition.name)}"
    items = f"case jsonb_typeof({json}) when 'array' then {json} else '[]' end"
    return f"{test(json)} or exists (select 1 from jsonb_array_elements({items}) item where {test('item.value')})"


def _equality(condition: Comparison, parameter: Callable[[Any], str]) -> str:
    """Return the SQL condition that a field equals a value, or is a list that contains the value."""
    from psycopg.types.json import Jsonb

    name, value = condition.name, condition.value
    json, in_list = f"metadata -> {parameter(name)}", f"metadata @> {parameter(Jsonb({name: [value]}))}"
    if value is None:
        return f"coalesce(jsonb_typeof({json}), 'null') = 'null' or {in_list}"
    if isinstance(value, list | dict):
        items = f"case jsonb_typeof({json}) when 'array' then {json} else '[]' end"
        wanted = parameter(Jsonb(value))
        return f"coalesce({json} = {wanted} or {wanted} in (select jsonb_array_elements({items})), false)"
    return f"metadata @> {parameter(Jsonb({name: value}))} or {in_list}"
