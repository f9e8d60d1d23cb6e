"""Sequences that share passes, blocks, states and memory: each has the logits that torch computes for it alone."""

import gc
from functools import cache

import pytest

from antiphon.accel import LanguageModel, PrefixCache
from antiphon.accel.drafting.draft import EMPTY, ROOT, Draft, chain, path_to
from antiphon.accel.engines.protocol import AnonymousTenant, SequenceInput
from tests.table_part import part
from tests.tiny import byte_tokenizer

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install openvino")

from antiphon.accel.engines.openvino.block_pool import EMPTY_STATE, MAX_STATES, OutOfBlocksError, StatePool
from antiphon.accel.engines.openvino.engine import OpenVINOEngine
from antiphon.accel.engines.openvino.graph import PagedGraph
from antiphon.accel.engines.openvino.paged_inputs import BLOCK_SIZE
from antiphon.accel.engines.openvino.paged_memory import block_bytes
from tests.accel.openvino.builders import engine_of, expect_plain, model_of, step, text_of, tree_of

pytestmark = pytest.mark.slow

MODEL = model_of()


@pytest.fixture(scope="module")
def shared() -> OpenVINOEngine:
    return engine_of(MODEL)


@cache
def compiled(family: str = "llama") -> PagedGraph:
    """Return the graph of engines that live for one test; each attaches its own memory."""
    return engine_of(model_of(family)).graph


def small(blocks: int) -> OpenVINOEngine:
    """Return an engine with memory for this number of blocks."""
    graph = compiled()
    return OpenVINOEngine(graph, memory=blocks * block_bytes(graph.cache_shapes, "f32"))


def test_chunked_prefill_does_not_change_the_logits(shared: OpenVINOEngine) -> None:
    text = text_of(100, seed=2)
    sequences = [shared.sequence(tenant=object()) for _ in range(2)]
    inputs = [
        SequenceInput(sequences[0], text, prefill_chunk=7),
        SequenceInput(sequences[1], text[:40], prefill_chunk=16),
    ]
    for logits, own in zip(shared.forward(inputs), (text, text[:40]), strict=True):
        expect_plain(MODEL, own, EMPTY, logits)


def test_kept_rows_are_moved_across_a_block_boundary(shared: OpenVINOEngine) -> None:
    text = text_of(BLOCK_SIZE - 2, seed=4)
    sequence = shared.sequence(tenant=object())
    draft = Draft(tuple(text_of(8, 5)), (ROOT, ROOT, 1, 0, 2, 4, 5, 6), (1.0,) * 8)
    step(shared, sequence, text, draft)
    path = path_to(draft, 7)
    assert path != list(range(len(path)))
    sequence.keep(path)
    text += [*(draft.tokens[row] for row in path), 7]
    expect_plain(MODEL, text, EMPTY, step(shared, sequence, text))


def test_a_cached_prefix_is_not_computed_again() -> None:
    engine = small(16)
    text = text_of(80, seed=7)
    first = engine.sequence(text)
    step(engine, first, text)
    first.keep(())
    second = engine.sequence([*text[:70], 5, 6])
    assert second.length == BLOCK_SIZE * 2
    assert second.blocks == first.blocks[:2]
    expect_plain(MODEL, [*text[:70], 5, 6], EMPTY, step(engine, second, [*text[:70], 5, 6]))
    assert engine.sequence(text, tenant="another").length == 0
    assert engine.sequence(text[: 2 * BLOCK_SIZE]).length == 2 * BLOCK_SIZE - 1, "the last token has to be computed"


def test_a_shared_block_is_copied_on_write() -> None:
    engine = small(16)
    text = text_of(2 * BLOCK_SIZE, seed=8)
    first = engine.sequence(text)
    step(engine, first, text)
    first.keep(())
    other = [*text[: BLOCK_SIZE + 9], 3, 4, 5]
    second = engine.sequence(other)
    assert second.length == BLOCK_SIZE + 9
    assert second.blocks == first.blocks[:2]
    expect_plain(MODEL, other, EMPTY, step(engine, second, other))
    assert second.blocks[0] == first.blocks[0]
    assert second.blocks[1] != first.blocks[1]
    expect_plain(MODEL, [*text, 1], EMPTY, step(engine, first, [*text, 1]))


def test_the_least_recently_used_sequence_is_evicted() -> None:
    engine = small(6)
    texts = [text_of(2 * BLOCK_SIZE - 1, seed=seed) for seed in range(10, 14)]
    sequences = [engine.sequence(tenant=object()) for _ in texts]
    for sequence, text in zip(sequences, texts, strict=True):
        step(engine, sequence, text)
        sequence.keep(())
    assert [sequence.is_evicted(text) for sequence, text in zip(sequences, texts, strict=True)] == [True, *[False] * 3]
    sequences[0].keep(())
    sequences[0].reset()
    assert not sequences[0].is_evicted(texts[0])
    expect_plain(MODEL, texts[0], EMPTY, step(engine, sequences[0], texts[0]))
    assert sequences[1].is_evicted(texts[1])


def test_a_sequence_that_does_not_fit_raises_and_can_be_reset() -> None:
    engine = small(3)
    sequence = engine.sequence()
    with pytest.raises(OutOfBlocksError, match="needs 97 tokens of KV cache, and the engine's memory holds 96"):
        engine.forward([SequenceInput(sequence, text_of(97))])
    sequence.reset()
    expect_plain(MODEL, text_of(90), EMPTY, step(engine, sequence, text_of(90)))


def test_a_garbage_collected_sequence_frees_its_blocks() -> None:
    engine = small(4)
    for seed in range(5):
        sequence = engine.sequence(tenant=object())
        step(engine, sequence, text_of(100, seed=seed))
        del sequence
        gc.collect()
    engine.sequence()
    assert engine.pool.num_available == 4


def test_the_prefixes_of_a_garbage_collected_tenant_are_dropped() -> None:
    engine = small(16)
    tenant, text = AnonymousTenant(), text_of(80, seed=12)
    sequence = engine.sequence(text, tenant=tenant)
    step(engine, sequence, text)
    sequence.keep(())
    blocks = set(sequence.blocks)
    del sequence
    gc.collect()
    assert engine.sequence(text, tenant=tenant).length == 64, "it is found as long as the tenant exists"
    del tenant
    gc.collect()
    other = engine.sequence(text, tenant=AnonymousTenant())
    assert (other.length, len(engine.pool._roots), engine.pool.num_available) == (0, 0, 16)
    step(engine, other, text)
    assert set(other.blocks) == blocks


def test_preallocation_does_not_overwrite_used_or_cached_blocks() -> None:
    engine = small(8)
    text = text_of(3 * BLOCK_SIZE, seed=40)
    read, left = engine.sequence(), engine.sequence(tenant="another")
    step(engine, read, text[:40])
    read.keep(())
    step(engine, left, text[:BLOCK_SIZE])
    left.keep(())
    del left
    gc.collect()
    engine.preallocate()
    expect_plain(MODEL, text, EMPTY, step(engine, read, text))
    again = engine.sequence(text, tenant="another")
    assert again.length == BLOCK_SIZE
    expect_plain(MODEL, text, tree_of(text), step(engine, again, text, tree_of(text)))


FAMILIES = part(("qwen3_5", "granitemoehybrid", "lfm2", "mamba2"), ("qwen3_5", "lfm2"))


def engine_with(family: str, states: int = MAX_STATES) -> OpenVINOEngine:
    """Return an engine with memory for this number of states."""
    return OpenVINOEngine(compiled(family), memory=2**22, num_states=states)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prefix_continues_from_the_state_after_its_last_full_block(family: str) -> None:
    model, engine = model_of(family), engine_with(family)
    text = text_of(80, seed=7)
    first = engine.sequence(text)
    step(engine, first, text)
    first.keep(())
    other = [*text[:70], 5, 6]
    second = engine.sequence(other)
    assert second.length == 64
    expect_plain(model, other, EMPTY, step(engine, second, other))
    assert engine.sequence(text[:64]).length == 0, "the state before the last block is not cached"
    assert engine.sequence(other, tenant="another").length == 0
    for _ in range(4):  # past 96 tokens, in the middle of a draft
        text = [*text, 9]
        draft = Draft(tuple(text_of(9, 5)), (ROOT, ROOT, 1, 0, 2, 4, 5, 6, 0), (1.0,) * 9)
        expect_plain(model, text, draft, step(engine, first, text, draft))
        first.keep(path_to(draft, 7))
        text += [draft.tokens[row] for row in path_to(draft, 7)]
    third = engine.sequence([*text[:100], 1])
    assert third.length == 96
    expect_plain(model, [*text[:100], 1], EMPTY, step(engine, third, [*text[:100], 1]))


@pytest.mark.parametrize("family", ["llama", *FAMILIES])
def test_tree_chain_plain_step_and_prefill_share_a_forward_pass(family: str) -> None:
    model, engine = model_of(family), engine_with(family)
    texts = [text_of(size, seed=size) for size in (70, 9, 33, 50)]
    drafts = [tree_of(texts[1]), chain(texts[2][:3]), EMPTY, EMPTY]
    sequences = [engine.sequence(tenant=object()) for _ in texts]
    engine.forward([SequenceInput(s, text[:-1]) for s, text in zip(sequences[:3], texts, strict=False)])
    for sequence in sequences[:3]:
        sequence.keep(())
    inputs = [
        SequenceInput(s, text[s.length :], draft) for s, text, draft in zip(sequences, texts, drafts, strict=True)
    ]
    for text, draft, logits in zip(texts, drafts, engine.forward(inputs), strict=True):
        expect_plain(model, text, draft, logits)
    sequences[0].discard()  # the state is the one before the draft again
    expect_plain(model, texts[0], EMPTY, step(engine, sequences[0], texts[0]))


@pytest.mark.parametrize("family", FAMILIES)
def test_sequences_share_few_states(family: str) -> None:
    model, engine = model_of(family), engine_with(family, states=12)
    texts = [text_of(40, seed=seed) for seed in range(11)]
    sequences = [engine.sequence(tenant=object()) for _ in texts]
    for sequence, text in zip(sequences, texts, strict=True):
        step(engine, sequence, text)
        sequence.keep(())
    assert sequences[0].is_evicted(texts[0])
    assert not sequences[-1].is_evicted(texts[-1])
    sequences[0].reset()
    expect_plain(model, texts[0], EMPTY, step(engine, sequences[0], texts[0]))
    with pytest.raises(OutOfBlocksError, match="needs 11 recurrent states"):
        engine.forward([SequenceInput(sequence, (1, 2)) for sequence in sequences])
    with pytest.raises(ValueError, match="at least two blocks and 8 states of"):
        OpenVINOEngine(compiled(family), memory=2000)


def test_requests_with_little_memory_have_the_text_of_torch() -> None:
    prompts = ["one two three one two", "a b a b a", "the cat sat on the mat and the cat", "abc " * 20]
    plain = LanguageModel(model_of("qwen3_5"), byte_tokenizer(), drafter="nothing")
    paged = LanguageModel(model_of("qwen3_5"), byte_tokenizer(), engine="openvino", memory=2**19)
    expected = [list(plain.generate(prompt, max_new_tokens=40).tokens) for prompt in prompts]
    texts = paged.generate_batch(prompts, references=[[p] for p in prompts], batch_size=4, max_new_tokens=40)
    assert [list(each.tokens) for each in texts] == expected
    prefix, messages = PrefixCache(), [{"role": "user", "content": prompts[3]}]
    for question in ("And now?", "And then?"):
        answer = paged.generate(messages, prefix=prefix, max_new_tokens=40)
        assert answer.text == plain.generate(messages, max_new_tokens=40).text
        messages += [{"role": "assistant", "content": answer.text}, {"role": "user", "content": question}]
    found = paged.generate(messages, prefix=prefix, max_new_tokens=1).steps.prefill_tokens
    assert found < len(paged.tokenize(messages).tokens) / 2


def test_the_pool_evicts_the_least_recently_used_state_without_a_user() -> None:
    pool = StatePool(4)
    blocks = pool.allocate(3)
    for block, length in zip(blocks, (32, 64, 96), strict=True):
        pool.cache("a", range(length), block)
    pool.free(blocks[1:])
    assert (pool.num_available, pool.find("a", range(70))) == (2, (blocks[1], 64))
    assert pool.allocate(1) == [blocks[2]], "64 was used later, and 32 has a user"
    assert pool.find("a", range(100)) == (blocks[1], 64)
    assert pool.find("b", range(100)) == pool.find("a", range(31)) == (EMPTY_STATE, 0)
    with pytest.raises(OutOfBlocksError, match="2 states are needed, and 1 of 4 are available"):
        pool.allocate(2)
    pool.forget_tenant("a")
    pool.free(blocks[:1])
    assert pool.num_available == 2
