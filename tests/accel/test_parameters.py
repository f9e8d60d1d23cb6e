"""Invalid parameters and messages are rejected by name before anything is loaded or generated."""

from functools import cache
from typing import Any

import pytest

from antiphon.accel.language_model import LanguageModel
from tests.tiny import byte_tokenizer, tiny_model

PROMPT = "the passages that retrieval found are the drafts that decoding verifies"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello <3"}]


@cache
def tiny() -> LanguageModel:
    return LanguageModel(tiny_model(), byte_tokenizer(), name="tiny")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, r"temperature is -0\.1; it must be 0 \(greedy\) or more"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"top_p": 0.0}, r"top_p is 0\.0"),
        ({"top_p": 1.1}, r"top_p is 1\.1"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_k": 2.5}, r"top_k is 2\.5"),
        ({"min_p": 1.5}, r"min_p is 1\.5"),
        ({"repetition_penalty": 0.0}, r"repetition_penalty is 0\.0"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0; it must be 1 or more"),
        ({"seed": -1}, "seed is -1"),
        ({"stop": ""}, "stop is ''"),
        ({"stop": ["a", ""]}, "at least one character"),
        ({"num_draft_tokens": -1}, "num_draft_tokens is -1"),
        ({"drafter": "psychic"}, "'psychic'.*blend"),
        ({"logprobs": 21}, "logprobs"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"logit_bias": {5: 101}}, "logit_bias"),
        ({"logit_bias": {999_999: 1}}, "logit_bias names token 999999"),
    ],
)
def test_a_parameter_out_of_range_is_rejected_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny().generate(PROMPT, **options)


@pytest.mark.parametrize("temperature", [1e-7, 1e-81, 5e-324])
def test_a_temperature_near_zero_is_greedy(temperature: float) -> None:
    greedy = tiny().generate(PROMPT, max_new_tokens=8)
    assert tiny().generate(PROMPT, max_new_tokens=8, temperature=temperature).tokens == greedy.tokens


@pytest.mark.parametrize("penalty", [1e-300, 1e-40, 1e300])
def test_sampling_survives_penalties_that_make_a_score_infinite(penalty: float) -> None:
    tokens = tiny().generate(PROMPT, max_new_tokens=8, temperature=1.0, repetition_penalty=penalty, seed=1).tokens
    assert 0 < len(tokens) <= 8


def test_a_reference_that_is_not_a_text_is_rejected_by_name() -> None:
    with pytest.raises(TypeError, match=r"references\[1\] is of type list"):
        tiny().generate(PROMPT, references=["a text", [1, 2]])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="give a list of texts"):
        tiny().generate(PROMPT, references="a text")
    with pytest.raises(TypeError, match=r"stop\[0\] is of type int"):
        tiny().generate(PROMPT, stop=[13])  # type: ignore[list-item]


@pytest.mark.parametrize(
    "messages",
    [[], ["hello"], [{"content": "no role"}], [{"role": "user"}], [{"role": "user", "content": ["parts"]}]],
)
def test_malformed_messages_are_rejected(messages: Any) -> None:
    with pytest.raises(ValueError, match="message"):
        tiny().generate(messages)


def test_messages_need_a_chat_template_and_its_errors_are_reported() -> None:
    bare = LanguageModel(tiny().model, byte_tokenizer(bos=False, chat=False))
    with pytest.raises(ValueError, match=r"no chat template .* pass the prompt as one text"):
        bare.generate(MESSAGES)
    with pytest.raises(ValueError, match="no tokens"):
        bare.generate("")
    assert bare.generate("a", max_new_tokens=1).usage.prompt_tokens == 1
    strict = LanguageModel(tiny().model, byte_tokenizer())
    strict.tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(ValueError, match="roles must alternate"):
        strict.generate(MESSAGES)
