"""Chat templates: every conversation is written with all its text, or refused by message and reason."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from antiphon.accel.text.chat_template import apply_chat_template
from antiphon.accel.text.template_check import CASES, TemplateCase
from antiphon.accel.text.template_traits import OMITTED, TemplateTraits, render_template, template_traits
from tests.tiny import byte_tokenizer

RECORDED = Path(__file__).parents[3] / "shared" / "data" / "chat_templates"

TURN = "<{{ m.role }}>{{ m.content }}"
LOOP = "{%- for m in messages -%}"

TEMPLATES = {
    "free": LOOP + TURN + "{%- endfor -%}<assistant>",
    "no system": LOOP
    + "{%- if m.role == 'system' -%}{{ raise_exception('System role not supported') }}{%- endif -%}"
    + "{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('Alternate') }}{%- endif -%}"
    + TURN
    + "{%- endfor -%}<assistant>",
    "system at the start": LOOP
    + "{%- if m.role == 'system' and not loop.first -%}{{ raise_exception('only at the start') }}{%- endif -%}"
    + TURN
    + "{%- endfor -%}<assistant>",
    "system, then turns": "{%- if messages[0].role == 'system' -%}{%- set sys = messages[0].content + '|' -%}"
    "{%- set messages = messages[1:] -%}{%- endif -%}"
    + LOOP
    + "{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('Alternate') }}{%- endif -%}"
    + "<{{ m.role }}>{% if loop.first %}{{ sys }}{% endif %}{{ m.content }}{%- endfor -%}<assistant>",
    "drops system": LOOP + "{%- if m.role != 'system' -%}" + TURN + "{%- endif -%}{%- endfor -%}<assistant>",
    "system in the last turn": "{%- if messages[0].role == 'system' -%}{%- set sys = messages[0].content -%}"
    "{%- set messages = messages[1:] -%}{%- endif -%}"
    + LOOP
    + "{%- if m.role == 'system' -%}{{ raise_exception('only at the start') }}{%- endif -%}"
    + "<{{ m.role }}>{% if loop.last and sys is defined %}{{ sys }}|{% endif %}{{ m.content }}"
    + "{%- endfor -%}<assistant>",
    "parts": LOOP + "<{{ m.role }}>{%- for part in m.content -%}{{ part.text }}{%- endfor -%}{%- endfor -%}<assistant>",
    "tools demanded": "{%- if tools is none -%}{{ raise_exception('no tools') }}{%- endif -%}"
    + LOOP
    + TURN
    + "{%- endfor -%}<assistant>",
}


def tokenizer_with(template: str) -> Any:
    tokenizer: Any = byte_tokenizer()
    tokenizer.chat_template = template
    tokenizer.bos_token, tokenizer.eos_token = "<s>", "</s>"
    return tokenizer


def conversation(*turns: str) -> list[dict[str, Any]]:
    """Return messages written as "role text"."""
    return [{"role": role, "content": content} for role, _, content in (turn.partition(" ") for turn in turns)]


CONVERSATIONS = {
    "a question with instructions": conversation("system S1.", "user U1."),
    "two turns": conversation("system S1.", "user U1.", "assistant A1.", "user U2."),
    "two questions": conversation("system S1.", "user U1.", "user U2."),
    "a cancelled answer": conversation("user U1.", "assistant ", "user U2."),
    "a truncated memory": conversation("assistant A1.", "user U1."),
    "instructions alone": conversation("system S1."),
    "instructions later": conversation("user U1.", "assistant A1.", "system S2.", "user U2."),
}


def recorded() -> Sequence[Any]:
    """Return the templates of published models, each of which behaves as one of our own."""
    files = sorted(RECORDED.glob("*.jinja"))
    absent = pytest.mark.skip(reason=f"recorded templates are absent: {RECORDED}")
    return [
        pytest.param(file.read_text(encoding="utf-8"), id=file.stem, marks=pytest.mark.exhaustive) for file in files
    ] or [pytest.param("", id="recorded", marks=[absent, pytest.mark.exhaustive])]


PLAIN = conversation("user U1.", "assistant A1.", "user U2.")
EQUAL = {
    "parts": [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in PLAIN],
    "no calls": [PLAIN[0], {**PLAIN[1], "tool_calls": None}, PLAIN[2]],
    "empty calls": [PLAIN[0], {**PLAIN[1], "tool_calls": []}, PLAIN[2]],
}
"""Other ways to write one conversation."""

OWN = [pytest.param(template, id=name) for name, template in TEMPLATES.items()]


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("template", [*OWN, *recorded()])
def test_every_conversation_is_written_with_all_its_text_in_order(template: str, name: str) -> None:
    messages = CONVERSATIONS[name]
    text = apply_chat_template(messages, (), tokenizer_with(template))
    said = [str(message["content"]) for message in messages if message["content"]]
    places = [text.find(each) for each in said]
    assert min(places) >= 0, text
    users = [place for place, each in zip(places, said, strict=True) if each.startswith(("U", "A"))]
    assert users == sorted(users)


@pytest.mark.parametrize("template", [*OWN, *recorded()])
def test_parts_and_empty_tool_calls_change_no_prompt(template: str) -> None:
    tokenizer = tokenizer_with(template)
    plain = apply_chat_template(PLAIN, (), tokenizer)
    assert {name: apply_chat_template(messages, (), tokenizer) for name, messages in EQUAL.items()} == dict.fromkeys(
        EQUAL, plain
    )


@pytest.mark.parametrize("template", [*OWN, *recorded()])
def test_templates_are_rendered_as_by_transformers(template: str) -> None:
    tokenizer = tokenizer_with(template)
    cases: list[tuple[Any, dict[str, Any]]] = [(messages, {}) for messages in CONVERSATIONS.values()]
    cases += [(case.messages, {"tools": [*case.tools] or None, "enable_thinking": case.thinking}) for case in CASES]
    cases += [(PLAIN, {"documents": [{"title": "T", "text": "bees"}], "add_generation_prompt": False})]
    cases.append(([{"role": "user", "content": "?"}, {"role": "assistant", "content": None, "reasoning": "hm"}], {}))

    def outcome(render: Any, messages: Any, **variables: Any) -> Any:
        try:
            return render([dict(message) for message in messages], **{"add_generation_prompt": True} | variables)
        except Exception as error:  # noqa: BLE001 - errors have to be equal as well
            return type(error), str(error)

    for messages, variables in cases:
        expected = outcome(tokenizer.apply_chat_template, messages, tokenize=False, **variables)
        given = variables | tokenizer.special_tokens_map
        assert outcome(partial(render_template, template), messages, **given) == expected


FUNCTIONS = {
    "json": "{{ {'ü': [1, x]} | tojson(indent=2) }}{{ [1] | tojson(separators=(',', ':')) }}",
    "namespace": "{% set n = namespace(a=1) %}{% set n.a = n.a + 1 %}{{ n.a }}{{ dict(b=2) }}{{ dict.fromkeys('a') }}",
    "hidden": "{% set n = namespace(_a=1) %}",
    "loops": "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}{% break %}{% endfor %}",
    "generation": "{% generation %}{{ messages[0].content }}{% endgeneration %}",
    "unsafe": "{{ messages.append(1) }}{{ ''.__class__ }}",
    "values": "{{ x }}{{ y is mapping }}{{ z }}{{ messages[1].thinking }}{{ messages[1].reasoning_content }}",
    "time": "{{ strftime_now('%Y') | length }}",
}
"""What templates may call."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_templates_are_those_of_transformers(name: str) -> None:
    messages = [{"role": "user", "content": " hi\n"}, {"role": "assistant", "content": "", "thinking": "hm"}]
    variables = {"x": np.float32(0.5), "y": MappingProxyType({"a": (1, object())}), "z": TemplateCase("n", ())}

    def outcome(render: Any, **options: Any) -> Any:
        try:
            return render(messages, **variables, **options)
        except Exception as error:  # noqa: BLE001 - errors have to be equal as well
            return type(error), str(error)

    tokenizer = tokenizer_with(FUNCTIONS[name])
    expected = outcome(tokenizer.apply_chat_template, tokenize=False)
    given = {"add_generation_prompt": False, **tokenizer.special_tokens_map}
    assert outcome(partial(render_template, FUNCTIONS[name]), **given) == expected


def test_an_answer_without_content_is_an_empty_one() -> None:
    messages = [PLAIN[0], {"role": "assistant", "content": None}, PLAIN[2]]
    written = apply_chat_template(messages, (), tokenizer_with(TEMPLATES["free"]))
    assert written == "<user>U1.<assistant><user>U2.<assistant>"
    picture = {"type": "image_url", "image_url": {"url": "x"}}
    with pytest.raises(ValueError, match=r"messages\[0\] has the part .*image_url.*text only"):
        apply_chat_template([{"role": "user", "content": [picture]}], (), tokenizer_with(TEMPLATES["free"]))


@pytest.mark.parametrize(
    ("name", "traits"),
    [
        ("free", TemplateTraits(True, True, False)),
        ("no system", TemplateTraits(False, False, True, False)),
        ("system at the start", TemplateTraits(True, False, False)),
        ("system, then turns", TemplateTraits(True, False, True, False)),
        ("drops system", TemplateTraits(False, False, False, False)),
        ("system in the last turn", TemplateTraits(False, False, False, False)),
        ("parts", TemplateTraits(True, True, False, takes_text=False)),
        ("tools demanded", TemplateTraits(True, True, False, takes_no_tools=False)),
    ],
)
def test_traits_are_found_by_rendering(name: str, traits: TemplateTraits) -> None:
    assert template_traits(tokenizer_with(TEMPLATES[name])) == traits


def test_instructions_precede_the_first_question_if_there_is_no_system_role() -> None:
    tokenizer = tokenizer_with(TEMPLATES["no system"])
    text = apply_chat_template(CONVERSATIONS["two turns"], (), tokenizer)
    assert text == "<user>S1.\n\nU1.<assistant>A1.<user>U2.<assistant>"
    later = apply_chat_template(CONVERSATIONS["instructions later"], (), tokenizer)
    assert later == "<user>U1.<assistant>A1.<user>S2.\n\nU2.<assistant>"


def test_turns_are_merged_if_the_template_demands_alternation() -> None:
    tokenizer = tokenizer_with(TEMPLATES["no system"])
    assert apply_chat_template(CONVERSATIONS["a cancelled answer"], (), tokenizer) == "<user>U1.\n\nU2.<assistant>"
    memory = apply_chat_template(CONVERSATIONS["a truncated memory"], (), tokenizer)
    assert memory == f"<user>{OMITTED}<assistant>A1.<user>U1.<assistant>"


def test_a_rejected_conversation_names_the_message_and_the_reason() -> None:
    refusing = LOOP + "{%- if m.role == 'tool' -%}{{ raise_exception('no tools here') }}{%- endif -%}" + TURN
    tokenizer = tokenizer_with(refusing + "{%- endfor -%}")
    messages = [*conversation("user U1."), {"role": "tool", "content": "5", "tool_call_id": "1"}]
    with pytest.raises(ValueError, match=r"rejects this conversation at message 1 \(tool\): no tools here"):
        apply_chat_template(messages, (), tokenizer)
