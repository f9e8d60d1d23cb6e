"""Texts that share forwards, blocks and a bounded memory: each says what it would say alone in torch."""

import gc
from functools import cache

import pytest
import torch

from antiphon.accel.drafting.draft import EMPTY, ROOT, Draft, chain, merge, pad, path_to
from antiphon.accel.engines.protocol import SequenceInput, Tenant
from antiphon.accel.testing.tiny import tiny_model

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install 'antiphon[openvino]'")

from antiphon.accel.engines.openvino.block_pool import OutOfBlocks
from antiphon.accel.engines.openvino.engine import BESIDE, OpenVINOEngine
from antiphon.accel.engines.openvino.graph import PagedGraph
from antiphon.accel.engines.openvino.paged_memory import block_bytes
from antiphon.accel.engines.openvino.paged_attention import BLOCK
from tests.accel.openvino.builders import engine_of, expect_plain, model_of, step, text_of, tree_of

MODEL = model_of()


@pytest.fixture(scope="module")
def shared() -> OpenVINOEngine:
    return engine_of(MODEL)


@cache
def compiled() -> PagedGraph:
    """The graph of the engines that live for one test: each lends it its own memory."""
    return engine_of(MODEL).graph


def small(blocks: int) -> OpenVINOEngine:
    """An engine with memory for so many blocks."""
    graph = compiled()
    return OpenVINOEngine(graph, memory=blocks * block_bytes(graph.heads, "f32"))


def test_texts_of_different_lengths_with_a_tree_a_chain_no_draft_and_a_prompt_share_a_forward(
    shared: OpenVINOEngine,
) -> None:
    texts = [text_of(size, seed=size) for size in (70, 9, 33, 50)]
    drafts = [tree_of(texts[1]), chain(texts[2][:3]), EMPTY, EMPTY]
    sequences = [shared.sequence(tenant=object()) for _ in texts]
    shared.forward([SequenceInput(s, text[:-1]) for s, text in zip(sequences[:3], texts, strict=False)])
    for sequence in sequences:
        sequence.keep(())
    feeds = [SequenceInput(s, text[s.length :], draft) for s, text, draft in zip(sequences, texts, drafts, strict=True)]
    for text, draft, logits in zip(texts, drafts, shared.forward(feeds), strict=True):
        expect_plain(MODEL, text, draft, logits)


def test_a_prompt_read_in_chunks_says_what_it_says_at_once(shared: OpenVINOEngine) -> None:
    text = text_of(100, seed=2)
    sequences = [shared.sequence(tenant=object()) for _ in range(2)]
    feeds = [SequenceInput(sequences[0], text, chunk=7), SequenceInput(sequences[1], text[:40], chunk=16)]
    for logits, own in zip(shared.forward(feeds), (text, text[:40]), strict=True):
        expect_plain(MODEL, own, EMPTY, logits)


def test_a_draft_beside_a_long_prompt_is_verified(shared: OpenVINOEngine) -> None:
    text = text_of(3 * BESIDE, seed=3)
    sequence = shared.sequence(tenant=object())
    assert sequence.can_draft_at_prefill(text)
    draft = tree_of(text)
    expect_plain(MODEL, text, draft, step(shared, sequence, text, draft))


def test_kept_rows_move_up_over_the_edge_of_a_block(shared: OpenVINOEngine) -> None:
    text = text_of(BLOCK - 2, seed=4)
    sequence = shared.sequence(tenant=object())
    draft = Draft(tuple(text_of(8, 5)), (ROOT, ROOT, 1, 0, 2, 4, 5, 6), (1.0,) * 8)
    step(shared, sequence, text, draft)
    path = path_to(draft, 7)
    assert path != list(range(len(path)))
    sequence.keep(path)
    text += [*(draft.tokens[row] for row in path), 7]
    expect_plain(MODEL, text, EMPTY, step(shared, sequence, text))


def test_rejected_rows_leave_nothing_behind(shared: OpenVINOEngine) -> None:
    text = text_of(20, seed=6)
    sequence = shared.sequence(tenant=object())
    step(shared, sequence, text, tree_of(text))
    assert sequence.length == 25
    sequence.keep(())
    assert sequence.length == 20
    expect_plain(MODEL, [*text, 9], EMPTY, step(shared, sequence, [*text, 9]))


def test_a_beginning_that_was_read_before_is_not_read_again() -> None:
    engine = small(16)
    text = text_of(80, seed=7)
    first = engine.sequence(text)
    step(engine, first, text)
    first.keep(())
    second = engine.sequence([*text[:70], 5, 6])
    assert second.length == BLOCK * 2
    assert second.blocks == first.blocks[:2]
    expect_plain(MODEL, [*text[:70], 5, 6], EMPTY, step(engine, second, [*text[:70], 5, 6]))
    assert engine.sequence(text, tenant="another").length == 0
    assert engine.sequence(text[: 2 * BLOCK]).length == 2 * BLOCK - 1, "the last token has to be read"


def test_a_shared_block_is_copied_before_it_is_written_to() -> None:
    engine = small(16)
    text = text_of(2 * BLOCK, seed=8)
    first = engine.sequence(text)
    step(engine, first, text)
    first.keep(())
    other = [*text[: BLOCK + 9], 3, 4, 5]
    second = engine.sequence(other)
    assert second.length == BLOCK + 9
    assert second.blocks == first.blocks[:2]
    expect_plain(MODEL, other, EMPTY, step(engine, second, other))
    assert second.blocks[0] == first.blocks[0]
    assert second.blocks[1] != first.blocks[1]
    expect_plain(MODEL, [*text, 1], EMPTY, step(engine, first, [*text, 1]))


def test_forks_go_on_from_the_same_text_by_themselves() -> None:
    engine = small(16)
    text = text_of(45, seed=9)
    first = engine.sequence()
    step(engine, first, text)
    first.keep(())
    second = engine.fork(first)
    assert second.blocks == first.blocks
    for sequence, token in ((first, 11), (second, 12)):
        expect_plain(MODEL, [*text, token], EMPTY, step(engine, sequence, [*text, token]))
        sequence.keep(())
    for sequence, token in ((first, 11), (second, 12)):
        expect_plain(MODEL, [*text, token, 5], EMPTY, step(engine, sequence, [*text, token, 5]))


def test_where_memory_is_short_the_text_that_was_used_least_recently_has_to_be_read_again() -> None:
    engine = small(6)
    texts = [text_of(2 * BLOCK - 1, seed=seed) for seed in range(10, 14)]
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


def test_a_text_that_does_not_fit_is_refused_in_a_sentence_and_others_go_on() -> None:
    engine = small(3)
    sequence = engine.sequence()
    with pytest.raises(OutOfBlocks, match="of 97 tokens together are in one forward, and the engine's memory holds 96"):
        engine.forward([SequenceInput(sequence, text_of(97))])
    sequence.reset()
    expect_plain(MODEL, text_of(90), EMPTY, step(engine, sequence, text_of(90)))


def test_memory_that_holds_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="memory is 100 bytes, and a block of 32 tokens takes"):
        OpenVINOEngine(compiled(), memory=100)


def test_a_text_that_nobody_has_any_more_gives_its_blocks_back() -> None:
    engine = small(4)
    for seed in range(5):
        sequence = engine.sequence(tenant=object())
        step(engine, sequence, text_of(100, seed=seed))
        del sequence
        gc.collect()
    engine.sequence()
    assert engine.pool.available == 4


def test_what_a_tenant_has_read_is_forgotten_with_the_tenant_and_its_blocks_are_used_first() -> None:
    engine = small(16)
    tenant, text = Tenant(), text_of(80, seed=12)
    sequence = engine.sequence(text, tenant=tenant)
    step(engine, sequence, text)
    sequence.keep(())
    blocks = set(sequence.blocks)
    del sequence
    gc.collect()
    assert engine.sequence(text, tenant=tenant).length == 64, "it is found for as long as somebody has the tenant"
    del tenant
    gc.collect()
    other = engine.sequence(text, tenant=Tenant())
    assert (other.length, engine.pool.tenants, engine.pool.available) == (0, 0, 16)
    step(engine, other, text)
    assert set(other.blocks) == blocks


def test_drafts_end_where_the_positions_of_the_model_do() -> None:
    engine = engine_of(tiny_model(max_position_embeddings=48))
    sequence = engine.sequence()
    step(engine, sequence, text_of(45))
    sequence.keep(())
    assert max(sequence.fit(chain([1] * 9), 9, 9).depths) == 2


def test_mask_tokens_are_left_out_and_other_probes_are_not(shared: OpenVINOEngine) -> None:
    sequence = shared.sequence()
    masks = merge(chain([5, 6]), Draft((-1,), (ROOT,), (0.5,), 1))
    assert sequence.fit(masks, 9, 9) == chain([5, 6])
    assert len(sequence.fit(pad(chain([5, 6]), 7, 2), 9, 9)) == 4


def test_logits_are_nobody_elses_memory(shared: OpenVINOEngine) -> None:
    sequence = shared.sequence(tenant=object())
    first = step(shared, sequence, text_of(12, seed=1))
    before = first.tensor().clone()
    sequence.keep(())
    step(shared, sequence, text_of(13, seed=2))
    assert torch.equal(first.tensor(), before)


def test_logits_name_the_best_tokens(shared: OpenVINOEngine) -> None:
    sequence = shared.sequence(tenant=object())
    logits = step(shared, sequence, text_of(12, seed=1), tree_of(text_of(5)))
    for row in (ROOT, 0, 4):
        assert logits.argmax(row) == int(logits.tensor()[row + 1].argmax())
    tokens, shares = logits.top_k([ROOT, 4], 3)
    expected = logits.tensor()[[0, 5]].topk(3).indices
    assert tokens.tolist() == expected.tolist()
    assert shares.shape == (2, 3)
    assert (shares[:, 0] >= shares[:, 1]).all()


def test_claiming_memory_ahead_writes_to_no_block_that_is_in_use_or_known() -> None:
    engine = small(8)
    text = text_of(3 * BLOCK, seed=40)
    read, left = engine.sequence(), engine.sequence(tenant="another")
    step(engine, read, text[:40])
    read.keep(())
    step(engine, left, text[:BLOCK])
    left.keep(())
    del left
    gc.collect()
    engine.claim()
    expect_plain(MODEL, text, EMPTY, step(engine, read, text))
    again = engine.sequence(text, tenant="another")
    assert again.length == BLOCK
    expect_plain(MODEL, text, tree_of(text), step(engine, again, text, tree_of(text)))
