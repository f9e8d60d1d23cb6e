"""JSON schemas as the grammar can express them: resolved references, and keywords left to validation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SINGLE = ("items", "additionalProperties", "additionalItems", "not", "contains", "propertyNames", "if", "then", "else")

_INEXPRESSIBLE = (
    "uniqueItems",
    "not",
    "contains",
    "minContains",
    "maxContains",
    "propertyNames",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "if",
    "then",
    "else",
    "unevaluatedProperties",
    "unevaluatedItems",
    "$dynamicRef",
    "$recursiveRef",
)
"""Keywords that the grammar cannot express; an answer may break them, which only validation finds."""

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
"""Formats as patterns that programs can read: the grammar's own also admit 30 February, and 60 seconds."""

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """A JSON schema for a response.

    Attributes:
        begun: Beginning of the JSON text, if the prompt already contains it.
        unless: Beginning of a response that need not follow the schema, such as the mark of a tool call; empty: none.
    """

    schema: Mapping[str, Any]
    begun: str = ""
    unless: str = ""


def resolve_references(schema: Any, prefix: str = "") -> tuple[Any, dict[str, Any]]:
    """Return the schema with all local references pointing to definitions, and these definitions.

    A pointer is resolved in the whole schema, or else in the innermost part around it that has definitions.
    Pointers that lead nowhere are kept.

    Args:
        prefix: Beginning of the definitions' names, so that several schemas can share one list of definitions.
    """
    resolver = _Resolver(prefix)
    return resolver.resolve(schema, (schema,)), resolver.definitions


def expressible_schema(schema: Schema) -> tuple[dict[str, Any], list[str]]:
    """Return the schema as the grammar can express it, and what was left out, such as "uniqueItems"."""
    removed: list[str] = []
    resolved, definitions = resolve_references(schema)
    found = dict(_expressible(resolved, removed))
    if definitions:
        found["$defs"] = {name: _expressible(each, removed) for name, each in definitions.items()}
    return found, list(dict.fromkeys(removed))


class _Resolver:
    """Collects the targets of references as definitions; a recursive one refers to itself."""

    def __init__(self, prefix: str) -> None:
        self.definitions: dict[str, Any] = {}
        self._prefix = prefix
        self._names: dict[tuple[int, str], str] = {}

    def resolve(self, schema: Any, scopes: tuple[Any, ...]) -> Any:
        """Return a part of a schema without its definitions.

        Args:
            scopes: The parts in which pointers are resolved, the whole schema first.
        """
        if not isinstance(schema, Mapping):
            return schema
        if schema is not scopes[0] and ("$defs" in schema or "definitions" in schema):
            scopes = (*scopes, schema)
        kept = {name: each for name, each in schema.items() if name not in ("$defs", "definitions", "$id", "$schema")}
        found = _map_parts(kept, lambda part: self.resolve(part, scopes))
        pointer = schema.get("$ref")
        if isinstance(pointer, str) and pointer.startswith("#"):
            found["$ref"] = self._reference(pointer, scopes)
        return found

    def _reference(self, pointer: str, scopes: tuple[Any, ...]) -> str:
        for scope in (scopes[0], *reversed(scopes[1:])):
            target = _target(scope, pointer)
            if target is None:
                continue
            key = (id(scope), pointer)
            if key not in self._names:
                last = re.sub(r"\W", "_", pointer.rpartition("/")[2]) or "root"
                self._names[key] = name = f"{self._prefix}{len(self._names)}.{last}"
                inner = scopes[: scopes.index(scope) + 1] if scope is not scopes[0] else scopes[:1]
                self.definitions[name] = None  # known before it is resolved, because it may refer to itself
                self.definitions[name] = self.resolve(target, inner)
            return f"#/$defs/{self._names[key]}"
        return pointer


def _target(scope: Any, pointer: str) -> Any:
    found: Any = scope
    for part in filter(None, pointer.removeprefix("#").split("/")):
        name = part.replace("~1", "/").replace("~0", "~").replace("%24", "$").replace("%20", " ")
        if isinstance(found, Sequence) and not isinstance(found, str):
            found = found[int(name)] if name.isdecimal() and int(name) < len(found) else None
        else:
            found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _map_parts(schema: Schema, change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the schema with its parts changed; values such as those of `enum` are no parts."""
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


def _expressible(schema: Any, removed: list[str]) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    found = _with_named_keys(schema)
    for name in found.keys() & set(_INEXPRESSIBLE):
        if found.pop(name) not in (None, False):
            removed.append(name)
    reference = found.get("$ref")
    if isinstance(reference, str) and not reference.startswith("#"):
        removed.append(f"$ref {reference}")
        del found["$ref"]
    if "oneOf" in found:
        choices = found.pop("oneOf")
        if "anyOf" not in found:
            found["anyOf"] = choices
        removed.append("oneOf")
    _simplify_text(found, removed)
    for name in found.keys() & set(_COUNTS):
        if isinstance(found[name], float) and found[name].is_integer():
            found[name] = int(found[name])
    if found.pop("nullable", False) and isinstance(found.get("type"), str):
        found["type"] = [found["type"], "null"]
    return _map_parts(found, lambda part: _expressible(part, removed))


def _with_named_keys(schema: Schema) -> dict[str, Any]:
    """Return the schema with the names that `propertyNames` lists as properties, which means the same."""
    found = dict(schema)
    names = found.get("propertyNames")
    if not isinstance(names, Mapping):
        return found
    others = found.get("additionalProperties", {})
    known = names.get("enum", [names["const"]] if "const" in names else None)
    if isinstance(known, list) and all(isinstance(name, str) for name in known) and others is not False:
        found["properties"] = {**dict.fromkeys(known, others), **(found.get("properties") or {})}
    elif isinstance(names.get("pattern"), str) and _is_accepted("pattern", names["pattern"]) and others is not False:
        found["patternProperties"] = {names["pattern"]: others, **(found.get("patternProperties") or {})}
    else:
        return found
    del found["propertyNames"]
    return {**found, "additionalProperties": False}


def _simplify_text(schema: dict[str, Any], removed: list[str]) -> None:
    """Remove a format, patterns and names by pattern that the grammar cannot express, or replace them by wider ones."""
    form, pattern = schema.get("format"), schema.get("pattern")
    if isinstance(form, str) and form in _CALENDAR and pattern is None:
        del schema["format"]
        schema["pattern"] = _CALENDAR[form]
        return
    if isinstance(form, str) and not _is_accepted("format", form):
        removed.append(f"format {form}")
        del schema["format"]
    if isinstance(pattern, str) and not _is_accepted("pattern", pattern):
        removed.append(f"pattern {pattern}")
        wider = _NUMBER_TEXT if _PYDANTIC_DECIMAL in pattern else _LOOKAROUND.sub("", pattern)
        if _is_accepted("pattern", wider):
            schema["pattern"] = wider
        else:
            del schema["pattern"]
    named = schema.get("patternProperties")
    if isinstance(named, Mapping) and (wrong := [each for each in named if not _is_accepted("pattern", each)]):
        removed += [f"patternProperties {each}" for each in wrong]
        schema["patternProperties"] = {name: each for name, each in named.items() if name not in wrong}
        schema["additionalProperties"] = True


@lru_cache(maxsize=256)
def _is_accepted(keyword: str, value: str) -> bool:
    """Return whether the grammar can express a text with this format or pattern."""
    from llguidance import LLMatcher

    grammar = LLMatcher.grammar_from_json_schema(json.dumps({"type": "string", keyword: value}))
    is_wrong, _ = LLMatcher.validate_grammar_with_warnings(grammar, None)
    return not is_wrong
