"""Recurrent and convolutional states on OpenVINO: prefixes, drafts, shared passes and eviction, with torch's logits."""

from functools import cache

import pytest

from antiphon.accel import LanguageModel, PrefixCache
from antiphon.accel.drafting.draft import EMPTY, ROOT, Draft, chain, path_to
from antiphon.accel.engines.protocol import SequenceInput
from tests.table_part import part
from tests.tiny import byte_tokenizer

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install openvino")

from antiphon.accel.engines.openvino.block_pool import OutOfBlocksError
from antiphon.accel.engines.openvino.engine import OpenVINOEngine
from antiphon.accel.engines.openvino.graph import PagedGraph
from antiphon.accel.engines.openvino.state_pool import EMPTY_STATE, MAX_STATES, StatePool
from tests.accel.openvino.builders import engine_of, expect_plain, model_of, step, text_of, tree_of

pytestmark = pytest.mark.slow

FAMILIES = part(("qwen3_5", "granitemoehybrid", "lfm2", "mamba2"), ("qwen3_5", "lfm2"))


@cache
def compiled(family: str) -> PagedGraph:
    return engine_of(model_of(family)).graph


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
def test_drafts_and_sequences_share_few_states(family: str) -> None:
    model, engine = model_of(family), engine_with(family, states=12)
    texts = [text_of(40, seed=seed) for seed in range(11)]
    sequences = [engine.sequence(tenant=object()) for _ in texts]
    wide = Draft(tuple(range(40, 56)), (ROOT,) * 16, tuple(0.9 - row / 100 for row in range(16)))
    assert len(sequences[0].fit(wide, 16, 16)) == 3, "each row needs a state, and each branch one for the root"
    for sequence, text in zip(sequences, texts, strict=True):
        step(engine, sequence, text)
        sequence.keep(())
    assert sequences[0].is_evicted(texts[0])
    assert not sequences[-1].is_evicted(texts[-1])
    sequences[0].reset()
    expect_plain(model, texts[0], EMPTY, step(engine, sequences[0], texts[0]))
    with pytest.raises(OutOfBlocksError, match="needs 22 recurrent states"):
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
