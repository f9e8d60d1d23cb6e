"""What filters mean, in Python: the reference for their translations into SQL and for vector stores."""

from typing import Any

from antiphon.retrieval import Passage
from antiphon.retrieval.filters import Filter, Junction, is_number, json_value


def matches(condition: Filter | None, passage: Passage) -> bool:
    """Return whether a passage matches a filter of `parse_filter`."""
    if condition is None:
        return True
    if isinstance(condition, Junction):
        results = [matches(part, passage) for part in condition.parts]
        if condition.operator == "$not":
            return not results[0]
        return all(results) if condition.operator == "$and" else any(results)
    value = passage.source if condition.name == "source" else json_value(passage.metadata.get(condition.name))
    if condition.operator == "$eq" and _same(value, condition.value):
        return True
    items = value if isinstance(value, list) else [value]
    return any(_compared(item, condition.operator, condition.value) for item in items)


def _compared(value: Any, operator: str, wanted: Any) -> bool:
    if operator == "$eq":
        return _same(value, wanted)
    if is_number(value) != is_number(wanted) or isinstance(value, str) != isinstance(wanted, str) or value is None:
        return False
    if operator == "$gt":
        return bool(value > wanted)
    if operator == "$gte":
        return bool(value >= wanted)
    return bool(value < wanted) if operator == "$lt" else bool(value <= wanted)


def _same(value: Any, wanted: Any) -> bool:
    return isinstance(value, bool) == isinstance(wanted, bool) and bool(value == wanted)
