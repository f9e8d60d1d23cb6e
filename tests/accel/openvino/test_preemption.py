"""Texts that do not fit into the memory together: they take turns, and each says what it says alone."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from antiphon.accel import LanguageModel
from antiphon.accel.testing.tiny import byte_tokenizer
from tests.accel.openvino.builders import model_of

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install 'antiphon[openvino]'")

from antiphon.accel.engines.openvino.block_pool import OutOfBlocks
from antiphon.accel.engines.openvino.engine import OpenVINOEngine
from antiphon.accel.engines.openvino.paged_memory import block_bytes
from antiphon.accel.engines.openvino.paged_attention import BLOCK

NEW = 40
PROMPTS = [
    f"{number}: a queen lays as many as two thousand eggs on a day {'of summer ' * number}" for number in range(6)
]
LONGEST = 150 + NEW
"""Tokens that the longest of these texts has at most, with its answer and a draft."""


def language_model(blocks: int, seed: int = 0, **options: Any) -> LanguageModel:
    """A model whose engine's memory has so many blocks."""
    model, tokenizer = model_of("llama", seed), byte_tokenizer()
    big = LanguageModel(model, tokenizer, engine="openvino", memory=2**22)
    each = block_bytes(engine_of(big).graph.heads, "f32")
    return LanguageModel(model, tokenizer, engine="openvino", memory=blocks * each, **options)


def engine_of(model: LanguageModel) -> OpenVINOEngine:
    assert isinstance(model.engine, OpenVINOEngine)
    return model.engine


def free_blocks(model: LanguageModel) -> int:
    """How many blocks can be had when a text begins, for which those of texts that are gone are collected."""
    engine = engine_of(model)
    engine.sequence(tenant=object())
    return engine.pool.available


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    """What torch says of each, decoding plainly."""
    model = LanguageModel(model_of("llama"), byte_tokenizer(), drafter="nothing")
    return [list(model.generate(prompt, max_new_tokens=NEW).tokens) for prompt in PROMPTS]


@pytest.fixture(params=[-(-LONGEST // BLOCK), -(-LONGEST // BLOCK) + 3, 2 * -(-LONGEST // BLOCK)])
def short_of_memory(request: pytest.FixtureRequest) -> Iterator[LanguageModel]:
    """Room for one of the texts, for little more, and for two."""
    model = language_model(request.param)
    assert engine_of(model).capacity == request.param * BLOCK
    yield model
    assert free_blocks(model) == request.param


@pytest.mark.parametrize("drafter", ["blend", "nothing"])
def test_texts_of_a_batch_take_turns_and_say_what_they_say_alone(
    short_of_memory: LanguageModel, plain: list[list[int]], drafter: str
) -> None:
    references = [[prompt] for prompt in PROMPTS]
    texts = short_of_memory.generate_batch(
        PROMPTS, references=references, batch_size=len(PROMPTS), drafter=drafter, max_new_tokens=NEW, recycling=False
    )
    assert [list(each.tokens) for each in texts] == plain
    assert sum(each.steps.prefill_tokens for each in texts) > sum(each.usage.prompt_tokens for each in texts)


def test_a_text_of_a_batch_that_has_ended_holds_no_memory_though_nobody_has_read_its_end() -> None:
    model = language_model(2 * -(-LONGEST // BLOCK))
    short, long = model.stream_batch(PROMPTS[:2], max_new_tokens=NEW, recycling=False)
    engine = engine_of(model)
    for _ in iter(long):
        pass
    assert engine.pool.available == engine.pool.blocks
    assert short.to_end().completion.tokens


def test_streams_that_are_read_in_turn_and_dropped_in_the_midst_leave_the_others_whole(plain: list[list[int]]) -> None:
    model = language_model(-(-LONGEST // BLOCK) + 1)
    streams = [model.stream(prompt, max_new_tokens=NEW, recycling=False) for prompt in PROMPTS]
    with closing(streams[0]):
        for stream in streams:
            next(iter(stream))
    assert [list(stream.to_end().completion.tokens) for stream in streams[1:]] == plain[1:]
    assert free_blocks(model) == engine_of(model).pool.blocks


def test_a_text_that_never_fits_is_an_error_of_its_own_and_the_others_are_told(plain: list[list[int]]) -> None:
    model = language_model(-(-LONGEST // BLOCK))
    long = "An answer about honey. " * 15
    streams = model.stream_batch([PROMPTS[0], long, PROMPTS[1]], max_new_tokens=NEW)
    with pytest.raises(OutOfBlocks, match=r"1 texts? of \d+ tokens .* memory holds 192; give it more \(memory=...\)"):
        streams[1].to_end()
    assert [list(streams[index].to_end().completion.tokens) for index in (0, 2)] == plain[:2]
    with pytest.raises(OutOfBlocks, match="shorten"):
        model.generate(long, max_new_tokens=NEW)
    assert list(model.generate(PROMPTS[0], max_new_tokens=NEW).tokens) == plain[0]


def test_a_text_that_outgrows_the_memory_says_so(plain: list[list[int]]) -> None:
    model = language_model(3)
    with pytest.raises(OutOfBlocks, match="memory holds 96"):
        model.generate(PROMPTS[0], max_new_tokens=200)
    assert free_blocks(model) == 3
    assert list(model.generate(PROMPTS[0], max_new_tokens=8).tokens) == plain[0][:8]
