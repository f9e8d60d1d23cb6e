"""Streams of a batch: the text of single requests, and the model's log-probability of it."""

from __future__ import annotations

import pytest
import torch

from antiphon.accel import LanguageModel, PrefixCache
from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model

PROMPTS = ("Bees dance in the hive.", "Wax melts.", "A queen lays two thousand eggs.")
REFERENCES = [["Bees dance at noon."], ["Wax melts at sixty degrees."], ["Eggs are laid by the queen."]]


@pytest.fixture(scope="module")
def tiny() -> LanguageModel:
    return LanguageModel(tiny_model(max_position_embeddings=512), byte_tokenizer())


def _told(language_model: LanguageModel, prompt: str, tokens: tuple[int, ...]) -> float:
    """Return the log-probability of tokens after a prompt, from one plain forward pass."""
    read = language_model.tokenize(prompt).tokens
    with torch.no_grad():
        logits = language_model.model(input_ids=torch.tensor([[*read, *tokens]])).logits[0].float()
    each = torch.log_softmax(logits, -1)
    return sum(float(each[len(read) - 1 + at, token]) for at, token in enumerate(tokens))


def test_each_stream_generates_what_it_generates_alone_and_its_log_probability(tiny: LanguageModel) -> None:
    streams = tiny.stream_batch(PROMPTS, references=REFERENCES, max_new_tokens=16)
    for prompt, references, stream in zip(PROMPTS, REFERENCES, streams, strict=True):
        said = stream.to_end().completion
        assert said.text == tiny.generate(prompt, references=references, max_new_tokens=16).text
        assert stream.log_probability == pytest.approx(_told(tiny, prompt, said.tokens), abs=1e-3)


def test_log_probability_ignores_penalties(tiny: LanguageModel) -> None:
    [stream] = tiny.stream_batch(PROMPTS[:1], max_new_tokens=8, repetition_penalty=1.3)
    said = stream.to_end().completion
    assert stream.log_probability == pytest.approx(_told(tiny, PROMPTS[0], said.tokens), abs=1e-3)


def test_a_closed_stream_costs_the_others_nothing(tiny: LanguageModel) -> None:
    first, second, third = tiny.stream_batch(PROMPTS, max_new_tokens=12)
    next(first)
    second.close()
    assert second.completion.finish_reason == "cancelled"
    for prompt, stream in ((PROMPTS[0], first), (PROMPTS[2], third)):
        assert stream.to_end().completion.text == tiny.generate(prompt, max_new_tokens=12).text


def test_cached_prefixes_are_not_read_again(tiny: LanguageModel) -> None:
    prefixes = [PrefixCache() for _ in PROMPTS]
    for ending in (" Who?", " Why?"):
        prompts = [f"{prompt}{ending}" for prompt in PROMPTS]
        read = [
            stream.to_end().completion for stream in tiny.stream_batch(prompts, prefixes=prefixes, max_new_tokens=6)
        ]
        for prompt, said in zip(prompts, read, strict=True):
            assert said.text == tiny.generate(prompt, max_new_tokens=6).text
            assert (said.steps.prefill_tokens < said.usage.prompt_tokens) == (ending == " Why?")


def test_a_stream_without_log_probability_raises(tiny: LanguageModel) -> None:
    with pytest.raises(RuntimeError, match="stream_batch"):
        _ = tiny.stream(PROMPTS[0], max_new_tokens=1).log_probability


def test_there_is_one_prefix_for_each_prompt(tiny: LanguageModel) -> None:
    with pytest.raises(ValueError, match="prefixes is 1; it must be 3"):
        tiny.stream_batch(PROMPTS, prefixes=[PrefixCache()])
