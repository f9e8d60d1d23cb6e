"""Prefix caches: the same tokens and logits from fewer prefilled tokens."""

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import pytest
import torch

from antiphon.accel import LanguageModel, PrefixCache, Summary, summarize
from antiphon.accel.decoding.model_request import ModelRequest, prepare
from antiphon.accel.decoding.options import DecodingOptions
from antiphon.accel.drafting.draft import Drafter
from antiphon.accel.drafting.drafters import Blend
from antiphon.accel.engines.torch.engine import engine_of
from tests.accel.adversarial_drafters import RandomTreeDrafter, RecordingDrafter
from tests.accel.oracles import expect_plain_logits
from tests.families.table import tiny_model
from tests.tiny import VOCAB_SIZE, byte_tokenizer

pytestmark = pytest.mark.slow

CROPS = ("llama", "qwen3", "phi3", "gpt2")
"""Families whose caches can be cropped."""

FIRST = list(range(30, 54))
SECOND = list(range(70, 80))


@cache
def model_of(family: str) -> Any:
    return tiny_model(family)


@cache
def plain(family: str, prompt: tuple[int, ...]) -> list[int]:
    model = model_of(family)
    inputs = torch.tensor([prompt])
    text: list[int] = model.generate(inputs, max_new_tokens=14, eos_token_id=None, do_sample=False)[0].tolist()
    return text


def decoded(
    family: str, prompt: Sequence[int], prefix: PrefixCache, drafter: Drafter | None = None
) -> tuple[list[int], Summary]:
    """Return the text after a prompt, checked against both oracles, and its summary."""
    model = model_of(family)
    recorder = RecordingDrafter(
        drafter or RandomTreeDrafter(plain(family, tuple(prompt)), seed=1, vocab_size=VOCAB_SIZE)
    )
    options = DecodingOptions(drafter=lambda: recorder, num_draft_tokens=32)
    arguments: dict[str, Any] = {"max_new_tokens": 14, "eos_token_id": None}
    arguments["past_key_values"] = prefix.take(model, prompt)
    make = partial(ModelRequest, options=options)
    request = engine_of(model).lock.run(lambda: prepare(model, prompt, make, do_sample=False, **arguments))
    summary = summarize(prefix.keep_after(request, request.steps()))
    text = request.history.tokens
    assert text == plain(family, tuple(prompt))
    expect_plain_logits(model, text, recorder.records)
    return text, summary


@pytest.mark.parametrize("family", [*CROPS, "mistral", "gemma3", "lfm2", "qwen3_5", "bamba"])
def test_a_continued_text_is_read_from_its_continuation(family: str) -> None:
    prefix = PrefixCache()
    text, cost = decoded(family, FIRST, prefix)
    assert cost.prefill_tokens == len(FIRST)
    longer, cost = decoded(family, [*text, *SECOND], prefix)
    assert cost.prefill_tokens == 1 + len(SECOND)  # the last emitted token is not in the cache yet
    assert prefix.size == len(longer) - 1
    assert decoded(family, [*longer, *SECOND], prefix)[1].prefill_tokens == 1 + len(SECOND)


@pytest.mark.parametrize("family", CROPS)
def test_a_different_text_is_read_from_the_first_difference(family: str) -> None:
    prefix = PrefixCache()
    text, _ = decoded(family, FIRST, prefix)
    turned = [*text[: len(FIRST) + 4], text[len(FIRST) + 4] ^ 1, *SECOND]
    assert decoded(family, turned, prefix)[1].prefill_tokens == 1 + len(SECOND)
    assert decoded(family, FIRST, prefix)[1].prefill_tokens == 1  # the last token is read again for its logits
    assert decoded(family, SECOND, prefix)[1].prefill_tokens == len(SECOND)


@pytest.mark.parametrize("family", ["mistral", "gemma3", "lfm2", "qwen3_5", "bamba"])
def test_layers_that_cannot_be_cropped_are_not_reused(family: str) -> None:
    prefix = PrefixCache()
    text, _ = decoded(family, FIRST, prefix)
    turned = [*text[: len(FIRST) + 4], text[len(FIRST) + 4] ^ 1, *SECOND]
    assert decoded(family, turned, prefix)[1].prefill_tokens == len(turned)


@pytest.mark.parametrize("family", ["mamba", "jamba", "recurrent_gemma", "llama-dynamic", "phi3-longrope"])
def test_caches_that_depend_on_the_length_are_not_kept(family: str) -> None:
    prefix = PrefixCache()
    decoded(family, FIRST, prefix)
    assert prefix.size == 0
    assert decoded(family, SECOND, prefix)[1].prefill_tokens == len(SECOND)


def test_another_model_finds_nothing() -> None:
    prefix = PrefixCache()
    decoded("llama", FIRST, prefix)
    assert decoded("qwen3", FIRST, prefix)[1].prefill_tokens == len(FIRST)


def test_one_request_at_a_time_takes_the_prefix_cache() -> None:
    prefix = PrefixCache()
    decoded("llama", FIRST, prefix)
    assert prefix.take(model_of("llama"), FIRST) is not None
    assert prefix.take(model_of("llama"), FIRST) is None


def test_after_an_error_nothing_is_kept() -> None:
    prefix, model = PrefixCache(), model_of("llama")
    text, _ = decoded("llama", FIRST, prefix)
    calls: list[int] = []

    def fail(*arguments: Any) -> None:
        calls.append(1)
        if len(calls) > 1:
            raise MemoryError("no memory left")

    hook = model.model.layers[1].register_forward_pre_hook(fail)  # layer 0 has appended its new keys by then
    try:
        with pytest.raises(MemoryError):
            decoded("llama", [*text, *SECOND], prefix, Blend())
    finally:
        hook.remove()
    assert prefix.size == 0
    decoded("llama", [*text, *SECOND], prefix)


def test_a_closed_stream_leaves_its_cache() -> None:
    tiny, prefix = LanguageModel(model_of("llama"), byte_tokenizer(), num_draft_tokens=8), PrefixCache()
    with tiny.stream("Hello there", prefix=prefix) as stream:
        next(stream)
    assert prefix.size >= len("Hello there")
    again = tiny.generate("Hello there, and more", prefix=prefix, max_new_tokens=9)
    assert again.steps.prefill_tokens <= len(", and more") + 1
    assert again.tokens == tiny.generate("Hello there, and more", max_new_tokens=9).tokens
