"""Tool calls: parsed in every notation, and written into the next prompt as each chat template demands."""

import json
import re
from typing import Any

import pytest

from antiphon.accel.text.chat_template import apply_chat_template
from antiphon.accel.text.tool_calls import parse_tool_calls, visible_text
from antiphon.accel.text.tool_turns import ToolTraits, tool_traits
from tests.accel.test_template_traits import recorded, tokenizer_with

TOOLS: dict[str, Any] = {
    "count": {
        "type": "object",
        "properties": {
            "number": {"type": "integer"},
            "ratio": {"type": "number"},
            "loud": {"type": "boolean"},
            "label": {"type": "string"},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/Tag"}},
            "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        },
        "$defs": {"Tag": {"type": "object", "properties": {"size": {"type": "integer"}}}},
    },
    "now": {"type": "object", "properties": {}},
}
ONE = '{"name": "count", "arguments": {"number": 3}}'
DEEP = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"

NOTATIONS = {
    "JSON": ONE,
    "JSON after prose": f"I look it up.\n{ONE}",
    "JSON before prose": f"{ONE}\nThat is all.",
    "JSON in a fence": f"Here:\n```json\n{ONE}\n```\n",
    "JSON in a bare fence": f"```\n{ONE}\n```",
    "OpenAI's form": '{"type": "function", "function": {"name": "count", "arguments": "{\\"number\\": 3}"}}',
    "name as function": '{"function": "count", "parameters": {"number": 3}}',
    "doubled braces": '{{"name": "count", "arguments": {"number": 3}}}',
    "Hermes": f"<tool_call>\n{ONE}\n</tool_call>",
    "Hermes unclosed": f"Let me see. <tool_call>{ONE}",
    "Hermes in a fence": f"<tool_call>\n```json\n{ONE}\n```\n</tool_call>",
    "Qwen XML": "<tool_call>\n<function=count>\n<parameter=number>\n3\n</parameter>\n</function>\n</tool_call>",
    "Qwen XML without tags": "<function=count>\n<parameter=number>\n3\n</parameter>\n</function>",
    "Seed": "<seed:tool_call>\n<function=count>\n<parameter=number>3</parameter>\n</function>\n</seed:tool_call>",
    "Llama": '{"name": "count", "parameters": {"number": "3"}}',
    "Llama 3 function": '<function=count>{"number": 3}</function>',
    "Llama python tag": f"<|python_tag|>{ONE}",
    "Llama python call": "<|python_tag|>count.call(number=3)",
    "Python list": "[count(number=3)]",
    "LFM": "<|tool_call_start|>[count(number=3)]<|tool_call_end|>Done.",
    "Mistral": f"[TOOL_CALLS] [{ONE}]",
    "Mistral one": f"[TOOL_CALLS]{ONE}",
    "Mistral new": '[TOOL_CALLS]count[CALL_ID]123456789[ARGS]{"number": 3}',
    "Mistral newest": '[TOOL_CALLS]count[ARGS]{"number": 3}',
    "Mistral without marks inside": '[TOOL_CALLS]count{"number": 3}',
    "DeepSeek V3": DEEP.format('function<｜tool▁sep｜>count\n```json\n{"number": 3}\n```'),
    "DeepSeek V3.1": DEEP.format('count<｜tool▁sep｜>{"number": 3}'),
    "GLM": "<tool_call>count\n<arg_key>number</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
    "Kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.count:0<|tool_call_argument_begin|>"
    '{"number": 3}<|tool_call_end|><|tool_calls_section_end|>',
    "gpt-oss": '<|channel|>commentary to=functions.count <|constrain|>json<|message|>{"number": 3}<|call|>',
    "gpt-oss role": '<|start|>assistant to=functions.count<|channel|>commentary json<|message|>{"number": 3}',
    "gpt-oss without marks": 'commentary to=functions.count json{"number": 3}',
    "Phi": f"<|tool_call|>[{ONE}]<|/tool_call|>",
    "Cohere": '```json\n[{"tool_name": "count", "parameters": {"number": 3}}]\n```',
}


def calls_of(text: str) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments) for call in parse_tool_calls(text, TOOLS).calls]


@pytest.mark.parametrize("name", NOTATIONS)
def test_a_call_is_parsed_in_every_notation_with_the_types_of_its_schema(name: str) -> None:
    found = parse_tool_calls(NOTATIONS[name], TOOLS)
    assert [(call.name, call.arguments) for call in found.calls] == [("count", {"number": 3})]
    assert found.malformed == ()
    assert all(len(call.id) == 9 and call.id.isalnum() for call in found.calls)
    assert "count" not in found.content


@pytest.mark.parametrize("name", [name for name in NOTATIONS if name != "gpt-oss without marks"])
def test_streamed_text_is_the_beginning_of_the_content(name: str) -> None:
    text = NOTATIONS[name]
    content = parse_tool_calls(text, TOOLS).content
    for end in range(len(text) + 1):
        assert content.startswith(visible_text(text[:end], TOOLS)), text[:end]


@pytest.mark.parametrize(
    "text",
    [
        f"{ONE}; {ONE}",
        f"{ONE}\n{ONE}",
        f"First {ONE} and then {ONE}.",
        f"<tool_call>{ONE}</tool_call>\n<tool_call>{ONE}</tool_call>",
        f"<tool_call>{ONE}\n{ONE}</tool_call>",
        f"[TOOL_CALLS][{ONE}, {ONE}]",
        '[TOOL_CALLS]count[ARGS]{"number": 3}[TOOL_CALLS]count[ARGS]{"number": 3}',
        f"<|python_tag|>{ONE}; {ONE}",
        DEEP.format("<｜tool▁call▁end｜><｜tool▁call▁begin｜>".join(['count<｜tool▁sep｜>{"number": 3}'] * 2)),
        "<tool_call>\n" + "<function=count>\n<parameter=number>\n3\n</parameter>\n</function>\n" * 2 + "</tool_call>",
        "[count(number=3), count(number=3)]",
    ],
)
def test_several_calls_in_a_row_are_all_parsed(text: str) -> None:
    assert calls_of(text) == [("count", {"number": 3})] * 2
    assert len({call.id for call in parse_tool_calls(text, TOOLS).calls}) == 2
    assert len(parse_tool_calls(text, TOOLS).first_call_only().calls) == 1


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>{count}</tool_call>",
        '<tool_call>{"name": "count", "arguments": {"number": ',
        "<tool_call></tool_call>",
        "<tool_call>hello</tool_call>",
        "[TOOL_CALLS] I would count.",
        "<|python_tag|>print(3)[0]",
        "<function=count><parameter=number>3",
        "<|tool_call_start|>[count(3)]<|tool_call_end|>",
        "<|python_tag|>count(number={3})",
        "<|python_tag|>count(number={[]: 3})",
        '<|python_tag|>count(**{"number": 3})',
        "<tool_call>count\n<arg_key>number</arg_key>",
        '{"name": "count", "arguments": {"number": 3}',
        '{"name": "Ada", "age": 36}',
        '{"name": "unknown", "arguments": {}}',
        '{"result": {"name": "count", "arguments": {"number": 3}}}',
        "[1] Bees live in colonies.",
        "a < b, [x](y) and `code` ```python\nprint()\n```",
        "",
    ],
)
def test_text_that_is_no_call_stays_content(text: str) -> None:
    found = parse_tool_calls(text, TOOLS)
    assert (found.content, found.calls) == (text, ())
    for end in range(len(text) + 1):
        assert text.startswith(visible_text(text[:end], TOOLS))


def test_text_around_calls_is_kept() -> None:
    text = f"Before.\n<tool_call>{ONE}</tool_call>\nBetween <tool_call>{{}}</tool_call> {ONE} After."
    found = parse_tool_calls(text, TOOLS)
    assert found.content == "Before.\n\nBetween <tool_call>{}</tool_call> After."
    assert (len(found.calls), len(found.malformed)) == (2, 1)


@pytest.mark.parametrize(
    ("name", "written", "typed"),
    [
        ("number", "5", 5),
        ("number", 5.0, 5),
        ("number", "five", "five"),
        ("ratio", "0.5", 0.5),
        ("ratio", "2", 2),
        ("loud", "True", True),
        ("loud", "false", False),
        ("label", 5, "5"),
        ("label", "5", "5"),
        ("label", "true", "true"),
        ("tags", '[{"size": "2"}]', [{"size": 2}]),
        ("tags", [{"size": "2"}], [{"size": 2}]),
        ("limit", "None", None),
        ("limit", "null", None),
        ("limit", "7", 7),
        ("other", "7", "7"),
    ],
)
def test_arguments_get_the_types_of_the_schema(name: str, written: Any, typed: Any) -> None:
    [(_, arguments)] = calls_of(json.dumps({"name": "count", "arguments": {name: written}}))
    assert arguments == {name: typed}
    assert type(arguments[name]) is type(typed)


def test_a_tool_without_arguments_is_called() -> None:
    assert calls_of('<tool_call>{"name": "now"}</tool_call>') == [("now", {})]
    assert calls_of("<tool_call>now\n</tool_call>") == [("now", {})]
    assert calls_of("<function=now>\n</function>") == [("now", {})]


def test_other_json_is_streamed_as_soon_as_it_cannot_be_a_call() -> None:
    assert visible_text('{"name": "Ada", "age"', TOOLS) == '{"name": "Ada", "age"'
    assert visible_text('{"title": "B', TOOLS) == '{"title": "B'
    assert visible_text('{"name": "cou', TOOLS) == ""


LOOP = "{%- for m in messages -%}<{{ m.role }}>"
CALLS = "{%- for c in m.tool_calls or [] -%}"
END = "{%- endfor -%}"

TEMPLATES = {
    "JSON": LOOP
    + "{{ m.content }}"
    + CALLS
    + '<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>'
    + END
    + END,
    "nine": LOOP
    + "{{ m.content }}{{ m.tool_call_id }}"
    + CALLS
    + "{%- if c.id | length != 9 -%}{{ raise_exception('ids have nine characters') }}{%- endif -%}"
    + "[TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ c.id }}[ARGS]{{ c.function.arguments | tojson }}"
    + END
    + END,
    "one": LOOP
    + "{%- if m.tool_calls is defined -%}{%- if m.tool_calls | length != 1 -%}"
    + "{{ raise_exception('only single tool-calls') }}{%- endif -%}{%- set f = m.tool_calls[0].function -%}"
    + '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}{%- else -%}{{ m.content }}{%- endif -%}'
    + END,
    "text": LOOP
    + "{%- if m.content is not none -%}{{ m.content }}{%- endif -%}"
    + CALLS
    + "{{ c.function.name + '|' + c.function.arguments }}"
    + END
    + END,
    "id": LOOP.replace("m.role", "m.name or m.role")
    + "{{ m.content }}{{ m.tool_call_id }}"
    + CALLS
    + "<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>{{ c.function.arguments | tojson }}<|tool_call_end|>"
    + END
    + END,
    "rejects": LOOP
    + "{%- if m.tool_calls or m.role == 'tool' -%}{{ raise_exception('no tools') }}{%- endif -%}{{ m.content }}"
    + END,
    "results alone": LOOP + "{{ m.content }}" + END,
    "drops": LOOP + "{%- if m.role != 'tool' -%}{{ m.content }}{%- endif -%}" + END,
}
EXPECTED = {
    "JSON": ToolTraits(),
    "nine": ToolTraits(ids="nine"),
    "one": ToolTraits(takes_several=False),
    "text": ToolTraits(takes_text_arguments=True),
    "id": ToolTraits(ids="name"),
    "rejects": ToolTraits(writes_calls=False, rejects_calls=True),
    "results alone": ToolTraits(writes_calls=False),
    "drops": ToolTraits(writes_calls=False, writes_results=False),
}


def call(number: int, arguments: Any) -> dict[str, Any]:
    function = {"name": "count", "arguments": arguments}
    return {"type": "function", "id": f"call_{number}_of_another_provider", "function": function}


def round_trip(arguments: Any = None) -> list[dict[str, Any]]:
    """Return a conversation with two calls in one message, as clients of OpenAI write it."""
    given = [{"of": "zebras"}, {"of": "pandas"}] if arguments is None else [arguments] * 2
    calls = [call(number, each) for number, each in enumerate(given)]
    results = [
        {"role": "tool", "tool_call_id": each["id"], "content": f"result {number}"} for number, each in enumerate(calls)
    ]
    return [
        {"role": "user", "content": "Count."},
        {"role": "assistant", "content": None, "tool_calls": calls},
        *results,
        {"role": "assistant", "content": "Counted.", "tool_calls": []},
        {"role": "user", "content": "Thanks."},
    ]


@pytest.mark.parametrize("name", TEMPLATES)
def test_traits_are_found_by_rendering(name: str) -> None:
    assert tool_traits(tokenizer_with(TEMPLATES[name])) == EXPECTED[name]


OWN = [pytest.param(template, id=name) for name, template in TEMPLATES.items()]


@pytest.mark.parametrize("template", [*OWN, *recorded()])
def test_calls_and_results_are_written_once_and_in_order_or_rejected(template: str) -> None:
    tokenizer = tokenizer_with(template)
    if tool_traits(tokenizer).rejects_calls:
        with pytest.raises(ValueError, match="rejects this conversation at message"):
            apply_chat_template(round_trip(), (), tokenizer)
        return
    text = apply_chat_template(round_trip(), (), tokenizer)
    said = ["Count.", "zebras", "result 0", "result 1", "Counted.", "Thanks."]
    places = [text.find(each) for each in said]
    assert min(places) >= 0, text
    assert places == sorted(places), text
    assert text.count("pandas") == text.count("zebras") == 1


@pytest.mark.parametrize("arguments", ['{"of": "zebras"}', {"of": "zebras"}, "not JSON", ""])
@pytest.mark.parametrize("template", [*OWN, *recorded()])
def test_arguments_are_accepted_as_an_object_and_as_text(template: str, arguments: Any) -> None:
    tokenizer = tokenizer_with(template)
    if not tool_traits(tokenizer).rejects_calls:
        text = apply_chat_template(round_trip(arguments), (), tokenizer)
        assert '\\"of' not in text, "an object is not quoted as a text"
        assert ("zebras" in text) == ("zebras" in str(arguments))


def test_ids_of_another_provider_are_mapped_consistently() -> None:
    text = apply_chat_template(round_trip(), (), tokenizer_with(TEMPLATES["nine"]))
    first, second = re.findall(r"\[CALL_ID\](\w{9})\[ARGS\]", text)
    assert first != second
    assert f"result 0{first}" in text
    assert f"result 1{second}" in text
    assert text == apply_chat_template(round_trip(), (), tokenizer_with(TEMPLATES["nine"]))


def test_calls_are_written_as_the_template_demands() -> None:
    text = apply_chat_template(round_trip(), (), tokenizer_with(TEMPLATES["id"]))
    assert re.findall(r"begin\|>(functions[^<]*)<", text) == ["functions.count:0", "functions.count:1"]
    assert "<tool>result 1functions.count:1" in text
    text = apply_chat_template(round_trip(), (), tokenizer_with(TEMPLATES["one"]))
    assert text == (
        '<user>Count.<assistant>{"name": "count", "parameters": {"of": "zebras"}}<tool>result 0'
        '<assistant>{"name": "count", "parameters": {"of": "pandas"}}<tool>result 1'
        "<assistant>Counted.<user>Thanks."
    )
    text = apply_chat_template(round_trip(), (), tokenizer_with(TEMPLATES["drops"]))
    assert '<assistant>{"name": "count", "arguments": {"of": "zebras"}}' in text
    assert "<user>result 0" in text
