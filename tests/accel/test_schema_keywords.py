"""Schemas that no grammar expresses completely: references, keywords and formats; none is refused."""

import json
import logging
from functools import cache
from typing import Any

import pytest

from antiphon.accel import LanguageModel
from antiphon.accel.constraints.json_schema import JsonSchema, expressible_schema
from antiphon.accel.text.tool_choice import tool_call_schema
from tests.schema_table import CLASSES
from tests.tiny import byte_tokenizer, tiny_model

pytestmark = pytest.mark.slow


@cache
def model() -> LanguageModel:
    return LanguageModel(tiny_model(max_position_embeddings=4096), byte_tokenizer(), name="tiny", recycling=False)


def answer(schema: Any, **options: Any) -> Any:
    return json.loads(model().generate("Bee: ", json_schema=schema, **{"max_new_tokens": 300, **options}).text)


@pytest.mark.parametrize("described", CLASSES, ids=lambda described: described.__name__)
def test_answers_are_objects_of_pydantic_classes(described: Any) -> None:
    for seed in range(2):
        text = (
            model()
            .generate(
                "Bee: ",
                json_schema=described.model_json_schema(),
                max_new_tokens=400,
                temperature=float(seed > 0),
                top_k=8,
                seed=seed,
            )
            .text
        )
        described.model_validate_json(text)


BOOL = {"type": "boolean"}
REFERRING: dict[str, Any] = {
    "$defs": {"$defs": {"A": BOOL}, "$ref": "#/$defs/A"},
    "definitions": {"definitions": {"A": BOOL}, "$ref": "#/definitions/A"},
    "properties": {"type": "object", "properties": {"a": BOOL, "b": {"$ref": "#/properties/a"}}, "required": ["b"]},
    "escaped": {"$defs": {"a/b": BOOL}, "$ref": "#/$defs/a~1b"},
    "chain": {"$defs": {"A": {"$ref": "#/$defs/B"}, "B": BOOL}, "$ref": "#/$defs/A"},
    "contained": {
        "type": "object",
        "properties": {"inner": {"$defs": {"A": BOOL}, "type": "array", "items": {"$ref": "#/$defs/A"}, "minItems": 1}},
        "required": ["inner"],
    },
    "recursion": {
        "type": "object",
        "properties": {"next": {"anyOf": [BOOL, {"$ref": "#"}]}},
        "required": ["next"],
    },
}


def values(found: Any) -> list[Any]:
    """Return the values that are neither objects nor lists."""
    if isinstance(found, dict | list):
        return [leaf for each in (found.values() if isinstance(found, dict) else found) for leaf in values(each)]
    return [found]


@pytest.mark.parametrize("name", REFERRING)
def test_references_are_resolved_in_the_schema_that_contains_them(name: str) -> None:
    schema = REFERRING[name]
    assert {type(each) for each in values(answer(schema))} == {bool}
    parameters = schema if schema.get("type") == "object" else {"type": "object", "properties": {"x": schema}}
    tools = [{"function": {"name": each, "parameters": parameters}} for each in ("first", "second")]
    call = answer(tool_call_schema(tools, ""))
    assert call["name"] in ("first", "second")
    assert {type(each) for each in values(call["arguments"])} <= {bool}
    assert answer(JsonSchema(tool_call_schema(tools[:1], "").schema))["name"] == "first"


INEXPRESSIBLE: dict[str, dict[str, Any]] = {
    "uniqueItems": {"type": "array", "items": BOOL, "uniqueItems": True, "maxItems": 3},
    "not": {**BOOL, "not": {"const": 3}},
    "contains": {"type": "array", "items": BOOL, "contains": {"const": True}, "minContains": 0, "maxItems": 3},
    "propertyNames": {"type": "object", "propertyNames": {"minLength": 1}, "additionalProperties": BOOL},
    "format": {"type": "string", "format": "colour", "maxLength": 9},
    "look-ahead": {"type": "string", "pattern": "^(?=[a-c])[a-z]{3}$"},
    "back reference": {"type": "string", "pattern": r"^(a)\1$", "maxLength": 9},
    "oneOf": {"oneOf": [{"type": "string", "maxLength": 3}, {"type": "string", "const": "a"}]},
    "if": {**BOOL, "if": {"const": True}, "then": {"const": True}},
    "dependentRequired": {"type": "object", "properties": {"a": BOOL}, "dependentRequired": {"a": ["b"]}},
    "pattern of names": {"type": "object", "patternProperties": {"^(?!x)": BOOL}, "properties": {"a": BOOL}},
    "remote": {"type": "object", "properties": {"a": {"$ref": "https://example.org/schema.json", "type": "null"}}},
    "float count": {"type": "string", "minLength": 2.0, "maxLength": 3.0},
}


@pytest.mark.parametrize("name", INEXPRESSIBLE)
def test_keywords_that_no_grammar_expresses_are_left_to_validation(name: str, caplog: pytest.LogCaptureFixture) -> None:
    schema = INEXPRESSIBLE[name]
    nested = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    with caplog.at_level(logging.WARNING, "antiphon.accel"):
        found = answer(nested, max_new_tokens=200)
    is_left = name != "float count"
    assert [record.getMessage().count("left to validation") for record in caplog.records] == [1] * is_left
    types: dict[str, type] = {"array": list, "boolean": bool, "object": dict, "string": str}
    assert isinstance(found["x"], types[schema.get("type", "string")])


def test_a_property_may_have_the_name_of_a_keyword() -> None:
    names = ["not", "format", "pattern", "$ref", "oneOf", "uniqueItems"]
    schema = {"type": "object", "properties": dict.fromkeys(names, BOOL), "required": names}
    assert list(answer(schema)) == names
    assert expressible_schema(schema) == (schema, [])
    assert expressible_schema({"enum": [{"not": 1}]}) == ({"enum": [{"not": 1}]}, [])


def test_everything_that_is_left_to_validation_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """Two keywords that llguidance leaves out, and a pattern that it would refuse."""
    item = {"not": {"const": "b"}, "type": "string", "pattern": "^(?=a)[ab]$"}
    found = answer({"type": "array", "uniqueItems": True, "items": item, "maxItems": 2, "minItems": 1})
    assert set(found) <= {"a", "b"}
    [record] = caplog.records
    for left in ("pattern ^(?=a)[ab]$", "uniqueItems", '"not"'):
        assert left in record.getMessage()
