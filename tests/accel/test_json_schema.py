"""Answers that follow a JSON schema: they always parse, within any limit, with and without drafts."""

import json
from functools import cache
from typing import Any

import pytest

from antiphon.accel import Conversation, LanguageModel, resolve_model
from antiphon.accel.constraints.json_schema import JsonSchema
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
