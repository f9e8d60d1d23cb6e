"""Convert the arguments of tool calls to the types in the tool's schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
MAX_DEPTH = 16
"""Maximum number of references and levels that are followed, because schemas may be recursive."""


def typed_arguments(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Convert arguments to the types of the schema: "5" becomes 5 if an integer is required.

    A value that cannot be converted is unchanged.
    """
    typed = _typed(dict(arguments), schema, schema, MAX_DEPTH)
    return typed if isinstance(typed, dict) else dict(arguments)


def _typed(value: Any, schema: Any, root: Mapping[str, Any], depth: int) -> Any:
    schema = _resolved(schema, root)
    if not isinstance(schema, Mapping) or depth <= 0:
        return value
    types = _types(schema, root, depth)
    if types and not any(_is(value, each) for each in types):
        value = _converted(value, types)
    for choice in _choices(schema):
        if any(_is(value, each) for each in _types(choice, root, depth)):
            value = _typed(value, choice, root, depth - 1)
    if isinstance(value, dict):
        named, others = schema.get("properties"), schema.get("additionalProperties")
        inner = named if isinstance(named, Mapping) else {}
        return {name: _typed(each, inner.get(name, others), root, depth - 1) for name, each in value.items()}
    if isinstance(value, list):
        return [_typed(each, schema.get("items"), root, depth - 1) for each in value]
    return value


def _resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    for _ in range(MAX_DEPTH):
        pointer = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(pointer, str) or not pointer.startswith("#"):
            return schema
        schema = root
        for name in filter(None, pointer[1:].split("/")):
            schema = schema.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(schema, Mapping) else None
    return None


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> list[str]:
    """Return the types that a schema allows, in the order of the schema; empty if it allows any type."""
    schema = _resolved(schema, root)
    if not isinstance(schema, Mapping) or depth <= 0:
        return []
    named = schema.get("type")
    found = [named] if isinstance(named, str) else [name for name in _items(named) if isinstance(name, str)]
    values = [*_items(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
    found += [] if found else [name for value in values for name in _PYTHON_TYPES if _is(value, name)]
    found += [name for choice in _choices(schema) for name in _types(choice, root, depth - 1)]
    return list(dict.fromkeys(name for name in found if name in _PYTHON_TYPES))


def _choices(schema: Mapping[str, Any]) -> list[Any]:
    """Return the schemas in a schema's ``anyOf``, ``oneOf`` and ``allOf``."""
    return [part for key in ("anyOf", "oneOf", "allOf") for part in _items(schema.get(key))]


def _items(value: Any) -> list[Any]:
    """Return the value if it is a list; otherwise (in a malformed schema) an empty list."""
    return list(value) if isinstance(value, list | tuple) else []


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return name in _PYTHON_TYPES and isinstance(value, _PYTHON_TYPES[name])


def _converted(value: Any, types: list[str]) -> Any:
    """Convert a value to an equivalent value of one of the types; return it unchanged if that is not possible."""
    read = _read(value) if isinstance(value, str) else value
    for name in types:
        if name in ("integer", "number") and isinstance(read, float) and read.is_integer():
            read = int(read)
        if _is(read, name):
            return read
    if "string" in types and not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return value


def _read(text: str) -> Any:
    """Parse a text as JSON, or as Python's True, False or None; return the text itself if neither is possible."""
    known = {"True": True, "False": False, "None": None, "true": True, "false": False}
    stripped = text.strip()
    if stripped in known:
        return known[stripped]
    try:
        return json.loads(stripped, strict=False)
    except (ValueError, RecursionError):
        return text
