"""Convert filters of LlamaIndex (`MetadataFilters`) and LangChain (structured queries) to Antiphon's filters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
        ValueError: An operator of the filter is not supported; the message names it.
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
