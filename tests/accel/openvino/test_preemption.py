"""Requests that do not fit into the KV cache together: the engine evicts sequences, and outputs stay the same."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from antiphon.accel import LanguageModel
from tests.accel.batches import steps_together
from tests.accel.openvino.builders import model_of
from tests.tiny import END_OF_TURN, EOS, byte_tokenizer

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install openvino")

from antiphon.accel.engines.openvino.block_pool import OutOfBlocksError
from antiphon.accel.engines.openvino.engine import OpenVINOEngine
from antiphon.accel.engines.openvino.paged_inputs import BLOCK_SIZE
from antiphon.accel.engines.openvino.paged_memory import block_bytes

pytestmark = pytest.mark.slow

NEW = 40
PROMPTS = [
    f"{number}: a queen lays as many as two thousand eggs on a day {'of summer ' * number}" for number in range(6)
]
LONGEST = 150 + NEW
"""Maximum number of tokens of the longest request: prompt, answer and one draft."""


def language_model(blocks: int, seed: int = 0, **options: Any) -> LanguageModel:
    """Return a model whose KV cache has this number of blocks."""
    model, tokenizer = model_of("llama", seed), byte_tokenizer()
    big = LanguageModel(model, tokenizer, engine="openvino", memory=2**22)
    each = block_bytes(engine_of(big).graph.cache_shapes, "f32")
    return LanguageModel(model, tokenizer, engine="openvino", memory=blocks * each, **options)


def engine_of(model: LanguageModel) -> OpenVINOEngine:
    assert isinstance(model.engine, OpenVINOEngine)
    return model.engine


def free_blocks(model: LanguageModel) -> int:
    """Return the number of available blocks after those of dropped sequences were collected."""
    engine = engine_of(model)
    engine.sequence(tenant=object())
    return engine.pool.num_available


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    """Tokens of torch without drafts, for each prompt."""
    model = LanguageModel(model_of("llama"), byte_tokenizer(), drafter="nothing")
    return [list(model.generate(prompt, max_new_tokens=NEW).tokens) for prompt in PROMPTS]


@pytest.fixture(params=[-(-LONGEST // BLOCK_SIZE), -(-LONGEST // BLOCK_SIZE) + 3, 2 * -(-LONGEST // BLOCK_SIZE)])
def short_of_memory(request: pytest.FixtureRequest) -> Iterator[LanguageModel]:
    """Memory for one request, for slightly more than one, and for two."""
    model = language_model(request.param)
    assert engine_of(model).capacity == request.param * BLOCK_SIZE
    yield model
    assert free_blocks(model) == request.param


@pytest.mark.parametrize("drafter", ["blend", "nothing"])
def test_evicted_requests_of_a_batch_get_the_tokens_that_they_get_alone(
    short_of_memory: LanguageModel, plain: list[list[int]], drafter: str
) -> None:
    references = [[prompt] for prompt in PROMPTS]
    texts = short_of_memory.generate_batch(
        PROMPTS, references=references, batch_size=len(PROMPTS), drafter=drafter, max_new_tokens=NEW, recycling=False
    )
    assert [list(each.tokens) for each in texts] == plain
    assert sum(each.steps.prefill_tokens for each in texts) > sum(each.usage.prompt_tokens for each in texts)


def test_dropping_a_stream_does_not_change_the_others(plain: list[list[int]]) -> None:
    model = language_model(-(-LONGEST // BLOCK_SIZE) + 1)
    streams = [model.stream(prompt, max_new_tokens=NEW, recycling=False) for prompt in PROMPTS]
    with closing(streams[0]):
        for stream in streams:
            next(iter(stream))
    assert [list(stream.to_end().completion.tokens) for stream in streams[1:]] == plain[1:]
    assert free_blocks(model) == engine_of(model).pool.num_blocks


def test_a_request_that_never_fits_fails_alone(plain: list[list[int]]) -> None:
    model = language_model(-(-LONGEST // BLOCK_SIZE))
    long = "An answer about honey. " * 15
    first, too_long, second = steps_together(
        model, [PROMPTS[0], long, PROMPTS[1]], max_new_tokens=NEW, eos_token_id=[EOS, END_OF_TURN]
    )
    with pytest.raises(
        OutOfBlocksError, match=r"over 1 requests? needs \d+ tokens .* memory holds 192; give it more \(memory=...\)"
    ):
        list(too_long)
    assert [[token for step in steps for token in step.tokens] for steps in (first, second)] == plain[:2]
    with pytest.raises(OutOfBlocksError, match="shorten"):
        model.generate(long, max_new_tokens=NEW)
    assert list(model.generate(PROMPTS[0], max_new_tokens=NEW).tokens) == plain[0]


def test_a_request_that_outgrows_the_memory_fails(plain: list[list[int]]) -> None:
    model = language_model(3)
    with pytest.raises(OutOfBlocksError, match="memory holds 96"):
        model.generate(PROMPTS[0], max_new_tokens=200)
    assert free_blocks(model) == 3
    assert list(model.generate(PROMPTS[0], max_new_tokens=8).tokens) == plain[0][:8]
