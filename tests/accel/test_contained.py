"""Containment of token sequences, which never matches across the bytes of two tokens."""

from random import Random

import pytest

from antiphon.accel import LanguageModel
from antiphon.accel.drafting.drafters.token_index import Contained
from antiphon.accel.text.messages import PromptSpan, tokenize_prompt
from tests.pipelines.recording_drafter import RecordingBlend
from tests.tiny import byte_tokenizer, tiny_model


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
