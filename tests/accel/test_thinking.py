"""Thinking: separated from the answer exactly, switched by the template, limited, and never under a schema."""

import json
from typing import Any

import pytest

from antiphon.accel import Conversation, LanguageModel
from antiphon.accel.text.messages import tokenize_prompt
from antiphon.accel.text.thinking_switch import thinking_traits
from tests.accel.thinking_models import QUESTION, thinking_tokenizer, writing
from tests.tiny import tiny_model

pytestmark = pytest.mark.slow

OUTPUTS = {
    "decides": "<think>\nBecause é.\n</think>\n\nSo it is.",
    "opened": "Because é.\n</think>\n\nSo it is.",
    "gemma": "<|channel>thought\nBecause é.\n<channel|>So it is.",
    "channels": "<|channel|>analysis<|message|>Because é.<|end|><|start|>assistant<|channel|>final<|message|>So it is.",
}
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}

marks = pytest.mark.parametrize("has_mark_tokens", [False, True], ids=["text", "tokens"])
outputs = pytest.mark.parametrize("name", OUTPUTS)


def pieces_of(stream: Any) -> list[Any]:
    return list(iter(stream.next_piece, None))


@outputs
@marks
def test_thinking_is_separated_from_the_answer(name: str, has_mark_tokens: bool) -> None:
    model = writing(thinking_tokenizer(name, has_mark_tokens=has_mark_tokens), OUTPUTS[name])
    with model.stream(QUESTION) as stream:
        pieces = pieces_of(stream)
    found = stream.completion
    assert (found.reasoning, found.text, found.ended_in_thinking) == ("Because é.", "So it is.", False)
    assert "".join(piece.text for piece in pieces if piece.is_thinking) == found.reasoning
    assert "".join(piece.text for piece in pieces if not piece.is_thinking) == found.text
    assert len([piece for piece in pieces if piece.is_thinking]) > 5  # streamed, not withheld to its end
    answer = len(model.tokenizer.encode("So it is.", add_special_tokens=False))
    assert found.usage.reasoning_tokens == found.usage.completion_tokens - answer - 1
    assert [origin.start for origin in found.origins][: found.usage.reasoning_tokens] == [0] * (
        found.usage.reasoning_tokens
    )


@outputs
def test_iterating_yields_the_answer_only(name: str) -> None:
    assert "".join(writing(thinking_tokenizer(name), OUTPUTS[name]).stream(QUESTION)) == "So it is."


@pytest.mark.parametrize("name", ["decides", "channels", "none"])
def test_an_answer_without_thinking_is_unchanged(name: str) -> None:
    found = writing(thinking_tokenizer(name), "  So <b>it</b> is a <think> tag.").generate(QUESTION)
    assert (found.text, found.reasoning) == ("  So <b>it</b> is a <think> tag.", "")
    assert found.usage.reasoning_tokens == 0


def test_a_mark_that_is_a_token_is_not_found_in_ordinary_text() -> None:
    tokenizer = thinking_tokenizer("opened", has_mark_tokens=True)
    model = writing(tokenizer, "")
    spelled = list(b"The tag </think> ends it.")
    end = [*tokenizer.encode("</think>So.", add_special_tokens=False), tokenizer.eos_token_id]
    reader = Reading(model, [*spelled, *end])
    assert reader.split == ("The tag </think> ends it.", "So.")


class Reading:
    """What a model's reader makes of tokens."""

    def __init__(self, model: LanguageModel, tokens: list[int]) -> None:
        from antiphon.accel.text.thinking import ThinkingReader

        reader = ThinkingReader(model.tokenizer, model.tokenize(QUESTION).thinking)
        splits = [*(reader.push(token) for token in tokens), reader.finish()]
        self.split = ("".join(each.thinking for each in splits), "".join(each.answer for each in splits))


@outputs
def test_an_end_inside_the_thinking_is_reported(name: str) -> None:
    found = writing(thinking_tokenizer(name), OUTPUTS[name]).generate(QUESTION, max_new_tokens=35)
    assert (found.text == "") is found.ended_in_thinking is (name in ("channels", "gemma"))
    short = writing(thinking_tokenizer(name), OUTPUTS[name]).generate(QUESTION, max_new_tokens=11)
    assert (short.text, short.ended_in_thinking, short.finish_reason) == ("", name != "channels", "length")


@pytest.mark.parametrize(
    ("name", "switch", "default", "has_effort"),
    [
        ("decides", "enable_thinking", "model", False),
        ("opened", "", "always", False),
        ("off", "thinking", "never", False),
        ("budget", "thinking_budget", "model", False),
        ("gemma", "use_reasoning", "model", False),
        ("channels", "", "model", True),
    ],
)
def test_the_switch_of_a_template_is_found_by_rendering(name: str, switch: str, default: str, has_effort: bool) -> None:
    traits = thinking_traits(thinking_tokenizer(name))
    assert (traits.switch, traits.default, traits.has_effort) == (switch, default, has_effort)
    assert thinking_traits(thinking_tokenizer("none")).format is None


@pytest.mark.parametrize(
    ("name", "given", "end"),
    [
        ("decides", {"thinking": False}, "<think>\n\n</think>\n\n"),
        ("off", {"thinking": True}, "<think>"),
        ("off", {}, "</think>"),
        ("budget", {"thinking": False}, "<t:think>budget 0</t:think>"),
        ("budget", {"template_variables": {"enable_thinking": False}}, "<t:think>budget 0</t:think>"),
        ("off", {"template_variables": {"reasoning_effort": "high"}}, "<think>"),
        ("decides", {"template_variables": {"reasoning_effort": "none"}}, "<think>\n\n</think>\n\n"),
        ("channels", {"template_variables": {"reasoning_effort": "high"}}, "assistanthigh"),
        ("channels", {"thinking": False}, "assistantlow"),
        ("gemma", {"thinking": False}, "<|channel>thought\n<channel|>"),
        ("none", {"thinking": False}, "assistant"),
    ],
)
def test_thinking_becomes_the_switch_that_the_template_has(name: str, given: dict[str, Any], end: str) -> None:
    assert tokenize_prompt(Conversation(QUESTION, **given), thinking_tokenizer(name)).text.endswith(end)


def test_variables_that_would_change_how_a_template_is_applied_are_refused() -> None:
    for name in ("chat_template", "add_generation_prompt", "tokenize", "messages"):
        with pytest.raises(ValueError, match=name):
            tokenize_prompt(Conversation(QUESTION, template_variables={name: "x"}), thinking_tokenizer("none"))


def test_a_response_prefix_begins_the_answer_after_the_thinking() -> None:
    model = LanguageModel(tiny_model(), thinking_tokenizer("opened"))
    found = model.generate(QUESTION, response_prefix="Well,", max_new_tokens=4)
    assert (found.reasoning, found.text[:5]) == ("", "Well,")
    begun = tokenize_prompt(Conversation(QUESTION, assistant_prefix="Well,"), thinking_tokenizer("opened"))
    assert begun.text.endswith("<think>\n\n</think>\n\nWell,")
    thought = tokenize_prompt(Conversation(QUESTION, assistant_prefix="<think>Hm"), thinking_tokenizer("opened"))
    assert thought.text.endswith("assistant\n<think>Hm")
    assert thought.thinking is not None
    assert thought.thinking.state == "thinking"


def test_stop_strings_are_searched_in_the_answer_only() -> None:
    model = writing(thinking_tokenizer("decides"), "<think>\nIt is.\n</think>\n\nSo it is.")
    found = model.generate(QUESTION, stop=["it"])
    assert (found.reasoning, found.text, found.finish_reason) == ("It is.", "So ", "stop")


@outputs
@marks
def test_the_thinking_ends_at_its_limit_and_the_answer_at_its_own(name: str, has_mark_tokens: bool) -> None:
    tokenizer = thinking_tokenizer(name, has_mark_tokens=has_mark_tokens)
    begun = {
        "decides": "<think>\n",
        "gemma": "<|channel>thought\n",
        "opened": "",
        "channels": "<|channel|>analysis<|message|>",
    }[name]
    model = writing(tokenizer, begun + "abcdefghijklmnopqrstuvwxyz" * 4)
    found = model.generate(QUESTION, max_thinking_tokens=9, max_new_tokens=5)
    assert found.reasoning == ("abcdefgh" if name == "decides" else "a" if name == "gemma" else "abcdefghi")
    assert (len(found.text), found.finish_reason) == (5, "length")
    assert model.generate(QUESTION, max_thinking_tokens=0, max_new_tokens=5).reasoning == ""


@outputs
@marks
def test_a_schema_constrains_the_answer_only(name: str, has_mark_tokens: bool) -> None:
    model = writing(thinking_tokenizer(name, has_mark_tokens=has_mark_tokens), OUTPUTS[name])
    given: list[dict[str, Any]] = [{"max_new_tokens": 160}, {"max_new_tokens": 30, "max_thinking_tokens": 40}]
    for limits in given:
        found = model.generate(QUESTION, json_schema=SCHEMA, **limits)
        assert found.reasoning == "Because é."
        assert set(json.loads(found.text)) == {"ok"}


@pytest.mark.parametrize(
    ("name", "length"),
    [("decides", 13), ("decides", 60), ("opened", 30), ("opened", 60), ("channels", 60), ("channels", 200)],
)
def test_an_answer_under_a_schema_is_complete_in_its_length(name: str, length: int) -> None:
    model = LanguageModel(tiny_model(), thinking_tokenizer(name))
    assert set(json.loads(model.generate(QUESTION, json_schema=SCHEMA, max_new_tokens=length).text)) == {"ok"}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@outputs
def test_drafted_thinking_and_answers_equal_plain_ones(name: str, temperature: float) -> None:
    tokenizer = thinking_tokenizer(name)
    model = LanguageModel(tiny_model(seed=3), tokenizer, engine="torch")
    options: list[dict[str, Any]] = [
        {"max_new_tokens": 60},
        {"max_new_tokens": 40, "max_thinking_tokens": 15},
        {"max_new_tokens": 120, "max_thinking_tokens": 15, "json_schema": SCHEMA},
    ]
    for parameters in options:
        same = parameters | {"temperature": temperature, "seed": 1}
        plain = model.generate(QUESTION, drafter="nothing", **same)
        drafted = model.generate(
            QUESTION, references=[plain.reasoning, plain.text, OUTPUTS[name]], num_draft_tokens=6, **same
        )
        assert drafted.tokens == plain.tokens
        assert (drafted.reasoning, drafted.text) == (plain.reasoning, plain.text)
        assert drafted.usage == plain.usage


def test_requests_of_a_batch_have_their_own_limits() -> None:
    model = LanguageModel(tiny_model(seed=3), thinking_tokenizer("opened"))
    options: dict[str, Any] = {"temperature": 1.0, "max_thinking_tokens": 9, "max_new_tokens": 12}
    together = model.generate_batch([QUESTION] * 3, seeds=[3, 4, 5], **options)
    assert [each.tokens for each in together] == [
        model.generate(QUESTION, seed=seed, **options).tokens for seed in (3, 4, 5)
    ]
