"""Conversations: tools that the chat template writes, a turn that is begun, and how a call of a tool begins."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.accel import Conversation, LanguageModel
from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model
from antiphon.accel.text.messages import encode_prompt, tool_call_prefix

MESSAGES = [{"role": "user", "content": "Count to 3"}]
TOOL = {"type": "function", "function": {"name": "count", "description": "Count", "parameters": {}}}

TURNS = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}{% for message in messages %}"
    "<{{ message.role }}>{{ message.content }}CALLS{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
CALLS = "{% for call in message.tool_calls or [] %}{% set function = call.function %}WRITTEN{% endfor %}"
HERMES = '<tool_call>\n{"name": "{{ function.name }}", "arguments": {{ function.arguments | tojson }}}\n</tool_call>'
LLAMA = '{"name": "{{ function.name }}", "parameters": {{ function.arguments | tojson }}}'
MISTRAL = '[TOOL_CALLS] [{"name": "{{ function.name }}", "arguments": {{ function.arguments | tojson }}}]'
XML = "<function={{ function.name }}>{% for key in function.arguments %}<{{ key }}>{% endfor %}</function>"


def tokenizer_of(written: str) -> Any:
    """The byte tokenizer with a chat template that writes tools, and calls in this way."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TURNS.replace("CALLS", CALLS.replace("WRITTEN", written) if written else "")
    return tokenizer


def text_of(conversation: Conversation, tokenizer: Any) -> str:
    return str(tokenizer.decode(encode_prompt(conversation, tokenizer)))


def test_a_conversation_is_written_with_its_tools_and_the_beginning_of_the_answer() -> None:
    tokenizer = tokenizer_of(HERMES)
    written = text_of(Conversation(MESSAGES, [TOOL], "Well, "), tokenizer)
    assert '"name": "count"' in written
    assert written.endswith("<user>Count to 3<assistant>Well, ")
    assert encode_prompt(Conversation(MESSAGES), tokenizer) == encode_prompt(MESSAGES, tokenizer)


def test_tools_are_refused_where_the_template_writes_none() -> None:
    with pytest.raises(ValueError, match="does not write tools"):
        encode_prompt(Conversation(MESSAGES, [TOOL]), byte_tokenizer())


@pytest.mark.parametrize(
    ("written", "any_of_them", "this_one"),
    [
        (HERMES, '<tool_call>\n{"name": "', '<tool_call>\n{"name": "count", "arguments": '),
        (LLAMA, '{"name": "', '{"name": "count", "parameters": '),
        (MISTRAL, '[TOOL_CALLS] [{"name": "', '[TOOL_CALLS] [{"name": "count", "arguments": '),
        (XML, "<function=", "<function=count"),
        ("", "", ""),
    ],
)
def test_how_a_call_begins_is_read_off_the_chat_template(written: str, any_of_them: str, this_one: str) -> None:
    tokenizer = tokenizer_of(written)
    assert tool_call_prefix(tokenizer, [TOOL]) == any_of_them
    assert tool_call_prefix(tokenizer, [TOOL], "count") == this_one


def test_a_completion_goes_on_from_the_beginning_of_the_answer() -> None:
    model = LanguageModel(tiny_model(), byte_tokenizer())
    begun = Conversation(MESSAGES, assistant_prefix="Well, ")
    text = text_of(begun, model.tokenizer).removeprefix("<bos>")
    assert model.generate(begun, max_new_tokens=20).tokens == model.generate(text, max_new_tokens=20).tokens
    assert model.generate(begun, max_new_tokens=20).tokens != model.generate(MESSAGES, max_new_tokens=20).tokens
