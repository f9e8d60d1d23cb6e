"""Answers that follow a JSON schema: they always parse, within any limit; keywords and pydantic classes."""

import json
import logging
from functools import cache
from typing import Any

import pytest

from antiphon.accel import Conversation, LanguageModel, resolve_model
from antiphon.accel.constraints.json_schema import JsonSchema, expressible_schema
from antiphon.accel.text.tool_choice import tool_call_schema
from tests.schema_table import CLASSES
from tests.table_part import part
from tests.tiny import byte_tokenizer, tiny_model

pytestmark = pytest.mark.slow

FLAT: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "is_queen": {"type": "boolean"}},
    "required": ["name", "age", "is_queen"],
}
NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["worker", "drone", "queen"]},
        "hive": {
            "type": "object",
            "properties": {
                "place": {"type": "string"},
                "color": {"enum": ["red", "green"]},
                "height": {"type": "number"},
            },
            "required": ["place", "color", "height"],
        },
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["kind", "hive", "note"],
}
LISTED: dict[str, Any] = {
    "type": "object",
    "properties": {"bees": {"type": "array", "items": {"$ref": "#/$defs/Bee"}}},
    "required": ["bees"],
    "$defs": {"Bee": FLAT},
}
SCHEMAS = {"flat": FLAT, "nested": NESTED, "list": LISTED}
MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.0},
    "cut": {"temperature": 2.0, "top_k": 4},
}


ROOM = {"flat": 41, "nested": 84, "list": 14}
"""Maximum length of the answer in tokens (one byte each): slightly more than the shortest answer needs."""


@cache
def model(seed: int = 0) -> LanguageModel:
    tiny = tiny_model(seed=seed, max_position_embeddings=4096)
    return LanguageModel(tiny, byte_tokenizer(), name="tiny", num_draft_tokens=32, recycling=False)


def follows(value: Any, schema: dict[str, Any], whole: dict[str, Any]) -> bool:
    """Return whether a value follows one of these schemas."""
    if "$ref" in schema:
        return follows(value, whole["$defs"]["Bee"], whole)
    if "anyOf" in schema:
        return any(follows(value, each, whole) for each in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    kind = schema["type"]
    if kind == "object":
        return list(value) == list(schema["properties"]) and all(
            follows(value[name], each, whole) for name, each in schema["properties"].items()
        )
    if kind == "array":
        return isinstance(value, list) and all(follows(each, schema["items"], whole) for each in value)
    kinds: dict[str, Any] = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None)}
    return isinstance(value, kinds[kind])


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_answer_follows_the_schema(name: str) -> None:
    """A random model never emits an end token, so every answer ends at its maximum length."""
    for number in range(10):
        completion = model(number % 5).generate(
            f"Bee {number}: ",
            json_schema=SCHEMAS[name],
            max_new_tokens=ROOM[name] + number,
            seed=number,
            temperature=number % 2,
            num_draft_tokens=0,
        )
        assert follows(json.loads(completion.text), SCHEMAS[name], SCHEMAS[name]), completion.text


@pytest.mark.parametrize("mode", part(MODES, ("sampled",)))
@pytest.mark.parametrize("name", part(SCHEMAS, ("nested",)))
def test_the_text_is_the_same_drafted_and_plain_and_batched(name: str, mode: str) -> None:
    asked: dict[str, Any] = {"json_schema": SCHEMAS[name], "max_new_tokens": 160, "seed": 3, **MODES[mode]}
    plain = model().generate("Which bees?", num_draft_tokens=0, **asked)
    reference = plain.text.replace("a", "b", 1)
    drafted = model().generate("Which bees?", references=[reference, plain.text], **asked)
    assert drafted.text == plain.text
    assert drafted.steps.steps < plain.steps.steps
    assert [each.text for each in model().generate_batch(["Which bees?"] * 2, **asked)] == [plain.text] * 2


def test_the_shortest_answer_fits_exactly_and_a_lower_limit_is_refused() -> None:
    least = '{"name": "", "age": 0, "is_queen": true}'
    text = model().generate("Bee: ", json_schema=FLAT, max_new_tokens=len(least)).text
    assert follows(json.loads(text), FLAT, FLAT)
    assert len(text) <= len(least)
    with pytest.raises(
        ValueError, match=f"may have {len(least) - 1} tokens, and the shortest .* has {len(least)}; raise"
    ):
        model().generate("Bee: ", json_schema=FLAT, max_new_tokens=len(least) - 1)


def test_an_answer_that_the_prompt_has_started_is_continued() -> None:
    begun = '{"name": "Maya", "age": '
    prompt = Conversation([{"role": "user", "content": "Which bee?"}], assistant_prefix=f"Well: {begun}")
    text = model().generate(prompt, json_schema=JsonSchema(FLAT, begun), max_new_tokens=60).text
    assert json.loads(begun + text)["name"] == "Maya"
    with pytest.raises(ValueError, match=r"No answer that begins with '\{\"other'"):
        model().generate(prompt, json_schema=JsonSchema(FLAT, '{"other'), max_new_tokens=60)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "bee"}, "Invalid type: bee"),
        ({"$ref": "#/$defs/Bee"}, "does not exist"),
    ],
)
def test_an_unsupported_schema_is_refused(schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=f"No answer can follow this JSON schema: .*{reason}"):
        model().generate("Bee: ", json_schema=schema)
    with pytest.raises(ValueError, match="json_schema is 'object'; it must be a mapping, or None"):
        model().generate("Bee: ", json_schema="object")  # type: ignore[arg-type]


@pytest.mark.exhaustive
def test_the_bundled_model_follows_a_schema_and_repeats_the_given_facts() -> None:
    """The bundled model's tokens are words, and several sequences of them can spell the same JSON."""
    try:
        folder = resolve_model("smollm2")
    except ImportError as error:
        pytest.skip(f"the embedded language model is not installed: {error}")
    embedded = LanguageModel.from_pretrained(folder, recycling=False, engine="torch")
    for name, schema in (("flat", FLAT), ("list", LISTED)):
        asked = [{"role": "user", "content": f"A bee of the name Maya. JSON of this schema: {json.dumps(schema)}"}]
        for temperature in (0.0, 1.0):
            completion = embedded.generate(
                asked, json_schema=schema, max_new_tokens=40, temperature=temperature, seed=1
            )
            assert follows(json.loads(completion.text), schema, schema), (name, completion.text)


@cache
def small_model() -> LanguageModel:
    return LanguageModel(tiny_model(max_position_embeddings=4096), byte_tokenizer(), name="tiny", recycling=False)


def answer(schema: Any, **options: Any) -> Any:
    return json.loads(small_model().generate("Bee: ", json_schema=schema, **{"max_new_tokens": 300, **options}).text)


@pytest.mark.parametrize("described", CLASSES, ids=lambda described: described.__name__)
@pytest.mark.parametrize("temperature", part((0.0, 1.0), (1.0,)))
def test_answers_are_objects_of_pydantic_classes(described: Any, temperature: float) -> None:
    asked: dict[str, Any] = {"json_schema": described.model_json_schema(), "max_new_tokens": 400}
    text = small_model().generate("Bee: ", temperature=temperature, top_k=8, seed=1, **asked).text
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
