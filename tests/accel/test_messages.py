"""Chat templates: tools, an assistant prefix, the prefix of a tool call, and passages contained in a prompt."""

from random import Random
from typing import Any

import pytest

from antiphon.accel import Conversation, LanguageModel
from antiphon.accel.drafting.drafters.token_index import Contained
from antiphon.accel.text.chat_template import tool_call_prefix
from antiphon.accel.text.messages import PromptSpan, encode_prompt, tokenize_prompt
from tests.pipelines.recording_drafter import RecordingBlend
from tests.tiny import byte_tokenizer, tiny_model

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
    """Return the byte tokenizer with a chat template that writes tools, and calls in this syntax."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TURNS.replace("CALLS", CALLS.replace("WRITTEN", written) if written else "")
    return tokenizer


def text_of(conversation: Conversation, tokenizer: Any) -> str:
    return str(tokenizer.decode(encode_prompt(conversation, tokenizer)))


def test_the_prompt_contains_tools_and_the_assistant_prefix() -> None:
    tokenizer = tokenizer_of(HERMES)
    written = text_of(Conversation(MESSAGES, [TOOL], "Well, "), tokenizer)
    assert '"name": "count"' in written
    assert written.endswith("<user>Count to 3<assistant>Well, ")
    assert encode_prompt(Conversation(MESSAGES), tokenizer) == encode_prompt(MESSAGES, tokenizer)


def test_tools_are_rejected_if_the_template_does_not_write_them() -> None:
    with pytest.raises(ValueError, match="does not write tools"):
        encode_prompt(Conversation(MESSAGES, [TOOL]), byte_tokenizer())


@pytest.mark.parametrize(
    ("written", "without_name", "with_name"),
    [
        (HERMES, '<tool_call>\n{"name": "', '<tool_call>\n{"name": "count", "arguments": '),
        (LLAMA, '{"name": "', '{"name": "count", "parameters": '),
        (MISTRAL, '[TOOL_CALLS] [{"name": "', '[TOOL_CALLS] [{"name": "count", "arguments": '),
        (XML, "<function=", "<function=count"),
        ("", "", ""),
    ],
)
def test_the_prefix_of_a_tool_call_is_read_from_the_chat_template(
    written: str, without_name: str, with_name: str
) -> None:
    tokenizer = tokenizer_of(written)
    assert tool_call_prefix(tokenizer, [TOOL]) == without_name
    assert tool_call_prefix(tokenizer, [TOOL], "count") == with_name


def test_a_completion_continues_the_assistant_prefix() -> None:
    model = LanguageModel(tiny_model(), byte_tokenizer())
    conversation = Conversation(MESSAGES, assistant_prefix="Well, ")
    text = text_of(conversation, model.tokenizer).removeprefix("<bos>")
    assert model.generate(conversation, max_new_tokens=20).tokens == model.generate(text, max_new_tokens=20).tokens
    assert model.generate(conversation, max_new_tokens=20).tokens != model.generate(MESSAGES, max_new_tokens=20).tokens


def test_containment_equals_a_search_token_by_token() -> None:
    random = Random(0)
    for _ in range(500):
        text = [random.choice([0, 1, 256, 65536]) for _ in range(12)]
        run = [random.choice([0, 1, 256, 65536]) for _ in range(random.randint(0, 3))]
        truth = any(text[start : start + len(run)] == run for start in range(len(text) - len(run) + 1))
        assert (run in Contained(text)) == truth


def test_the_tokens_of_a_reference_are_found_in_the_prompt_that_contains_it() -> None:
    tokenizer = byte_tokenizer()
    tokenized = tokenize_prompt("Read: bees dance \N{HONEYBEE}. And?", tokenizer)
    assert tokenizer.decode(list(tokenized.tokens_of("bees dance \N{HONEYBEE}."))) == "bees dance \N{HONEYBEE}."
    assert tokenized.tokens_of("wasps") == ()
    assert tokenized.tokens_of("") == ()
    assert tokenize_prompt(tokenized, tokenizer) is tokenized
    span = tokenized.span_of("bees dance")
    assert span == (7, 17)
    assert tokenized.tokens_of(PromptSpan(7, 17)) == tokenized.tokens_of("bees dance")


def test_a_span_of_the_prompt_is_a_reference() -> None:
    model, recorder = LanguageModel(tiny_model(), byte_tokenizer(), name="tiny"), RecordingBlend()
    prompt = model.tokenize("Read: bees dance. And?")
    model.generate(prompt, references=[PromptSpan(7, 17), "wax"], max_new_tokens=2, drafter=lambda: recorder)
    assert [model.tokenizer.decode(list(each)) for each in recorder.references] == ["bees dance", "wax"]
    with pytest.raises(TypeError, match=r"references\[0\] is of type int"):
        model.generate(prompt, references=[3])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="references is one text"):
        model.generate(prompt, references="wax")
