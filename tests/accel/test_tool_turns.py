"""Tool calls and results of a conversation are written completely by every template that has tools."""

import re
from typing import Any

import pytest

from antiphon.accel.text.chat_template import apply_chat_template
from antiphon.accel.text.tool_turns import ToolTraits, tool_traits
from tests.accel.test_template_traits import recorded, tokenizer_with

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


def test_an_id_that_is_the_call_names_tool_and_place() -> None:
    text = apply_chat_template(round_trip(), (), tokenizer_with(TEMPLATES["id"]))
    assert re.findall(r"begin\|>(functions[^<]*)<", text) == ["functions.count:0", "functions.count:1"]
    assert "<tool>result 1functions.count:1" in text


def test_several_calls_are_split_if_a_message_may_have_one() -> None:
    text = apply_chat_template(round_trip(), (), tokenizer_with(TEMPLATES["one"]))
    assert text == (
        '<user>Count.<assistant>{"name": "count", "parameters": {"of": "zebras"}}<tool>result 0'
        '<assistant>{"name": "count", "parameters": {"of": "pandas"}}<tool>result 1'
        "<assistant>Counted.<user>Thanks."
    )


def test_calls_that_a_template_would_drop_become_text() -> None:
    text = apply_chat_template(round_trip(), (), tokenizer_with(TEMPLATES["drops"]))
    assert '<assistant>{"name": "count", "arguments": {"of": "zebras"}}' in text
    assert "<user>result 0" in text
