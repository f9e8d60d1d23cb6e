"""Adapt JSON schemas to the grammar: replace or remove what llguidance does not support."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any
from urllib.parse import quote

SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SINGLE = ("items", "additionalProperties", "additionalItems")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_LOOKAROUND = re.compile(r"\(\?<?[=!](?:[^()\\]|\\.|\[[^\]]*\])*\)")
_NUMBER_TEXT = r"^[+-]?\d+(?:\.\d+)?$"
_PYDANTIC_DECIMAL = "(?!^[-+.]*$)"

_DATE = (
    r"[1-9]\d{3}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
    r"|[1-9]\d(?:0[48]|[2468][048]|[13579][26])-02-29"
)
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)?"
_DAYS = r"(?:\d{1,4}Y(?:\d{1,4}M)?(?:\d{1,4}D)?|\d{1,4}M(?:\d{1,4}D)?|\d{1,4}D)"
_HOURS = r"T(?:\d{1,4}H(?:\d{1,4}M)?(?:\d{1,4}S)?|\d{1,4}M(?:\d{1,4}S)?|\d{1,4}(?:\.\d{1,6})?S)"
_CALENDAR = {
    "date": f"^(?:{_DATE})$",
    "time": f"^{_TIME}$",
    "date-time": f"^(?:{_DATE})T{_TIME}$",
    "duration": f"^P(?:{_DAYS}(?:{_HOURS})?|{_HOURS}|\\d{{1,4}}W)$",
}
"""Patterns that replace formats; the grammar's own also allow 30 February and 60 seconds."""

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """A JSON schema for a response.

    Attributes:
        begun: Beginning of the JSON text, if the prompt already contains it.
        unless: A response that begins with this text, such as the mark of a tool call, need not
            follow the schema. Empty: every response must follow it.
    """

    schema: Mapping[str, Any]
    begun: str = ""
    unless: str = ""


def expressible_schema(schema: Schema) -> tuple[dict[str, Any], list[str]]:
    """Return the schema without the parts that llguidance does not support, and a description of each removed part.

    A reference is resolved in the innermost enclosing part that has definitions.
    """
    removed: list[str] = []
    return _expressible(schema, removed, count()), list(dict.fromkeys(removed))


def map_parts(schema: Schema, change: Callable[[Any], Any]) -> dict[str, Any]:
    """Apply ``change`` to every sub-schema; plain values, such as the items of `enum`, are not sub-schemas."""
    found = dict(schema)
    for name in schema.keys() & {*SCHEMAS_BY_NAME, *_LISTS, *_SINGLE}:
        value = schema[name]
        if name in SCHEMAS_BY_NAME and isinstance(value, Mapping):
            found[name] = {key: change(each) for key, each in value.items()}
        elif name in _LISTS and isinstance(value, list):
            found[name] = [change(each) for each in value]
        elif name in _SINGLE:
            found[name] = change(value)
    return found


def _expressible(schema: Any, removed: list[str], numbers: Iterator[int]) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    found = _with_named_keys(schema)
    for name in ("$schema", "$id"):
        found.pop(name, None)
    if "$defs" in found or "definitions" in found:
        found["$id"] = f"part:{next(numbers)}"
    if isinstance(reference := found.get("$ref"), str):
        found["$ref"] = quote(reference, safe="#/~%")
        if not reference.startswith("#"):
            removed.append(f"$ref {reference}")
            del found["$ref"]
    _simplify_text(found, removed)
    for name in found.keys() & set(_COUNTS):
        if isinstance(found[name], float) and found[name].is_integer():
            found[name] = int(found[name])
    if found.pop("nullable", False) and isinstance(found.get("type"), str):
        found["type"] = [found["type"], "null"]
    return map_parts(found, lambda part: _expressible(part, removed, numbers))


def _with_named_keys(schema: Schema) -> dict[str, Any]:
    """Convert the names or the pattern in `propertyNames` to equivalent properties."""
    found = dict(schema)
    names = found.get("propertyNames")
    if not isinstance(names, Mapping):
        return found
    others = found.get("additionalProperties", {})
    known = names.get("enum", [names["const"]] if "const" in names else None)
    if isinstance(known, list) and all(isinstance(name, str) for name in known) and others is not False:
        found["properties"] = {**dict.fromkeys(known, others), **(found.get("properties") or {})}
    elif isinstance(names.get("pattern"), str) and _is_accepted(names["pattern"]) and others is not False:
        found["patternProperties"] = {names["pattern"]: others, **(found.get("patternProperties") or {})}
    else:
        return found
    del found["propertyNames"]
    return {**found, "additionalProperties": False}


def _simplify_text(schema: dict[str, Any], removed: list[str]) -> None:
    """Remove or widen the patterns (of texts and of property names) that the grammar cannot express."""
    form, pattern = schema.get("format"), schema.get("pattern")
    if isinstance(form, str) and form in _CALENDAR and pattern is None:
        del schema["format"]
        schema["pattern"] = _CALENDAR[form]
    elif isinstance(pattern, str) and not _is_accepted(pattern):
        removed.append(f"pattern {pattern}")
        wider = _NUMBER_TEXT if _PYDANTIC_DECIMAL in pattern else _LOOKAROUND.sub("", pattern)
        if _is_accepted(wider):
            schema["pattern"] = wider
        else:
            del schema["pattern"]
    named = schema.get("patternProperties")
    if isinstance(named, Mapping) and (wrong := [each for each in named if not _is_accepted(each)]):
        removed += [f"patternProperties {each}" for each in wrong]
        schema["patternProperties"] = {name: each for name, each in named.items() if name not in wrong}
        schema["additionalProperties"] = True


@lru_cache(maxsize=256)
def _is_accepted(pattern: str) -> bool:
    """Return whether the grammar supports this pattern."""
    from llguidance import LLMatcher

    grammar = LLMatcher.grammar_from_json_schema(json.dumps({"type": "string", "pattern": pattern}))
    is_wrong, _ = LLMatcher.validate_grammar_with_warnings(grammar, None)
    return not is_wrong
