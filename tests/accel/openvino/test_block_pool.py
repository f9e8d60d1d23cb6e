"""Who has which block: counts of users, what is found again, and what is forgotten first."""

import pytest

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install 'antiphon[openvino]'")

from antiphon.accel.engines.openvino.block_pool import BlockPool, OutOfBlocks
from antiphon.accel.engines.openvino.paged_attention import BLOCK

TEXT = list(range(3 * BLOCK))


def known(pool: BlockPool, text: list[int], tenant: str = "a") -> list[int]:
    """Blocks that held this text, and are idle now."""
    blocks = pool.take(len(text) // BLOCK)
    pool.know(tenant, text, blocks)
    pool.release(blocks)
    return blocks


def test_a_block_is_free_again_when_its_last_user_has_left() -> None:
    pool = BlockPool(2)
    blocks = pool.take(2)
    pool.share(blocks)
    pool.release(blocks)
    assert pool.available == 0
    pool.release(blocks)
    assert pool.available == 2


def test_more_blocks_than_there_are_are_refused_and_none_is_taken() -> None:
    pool = BlockPool(3)
    pool.take(1)
    with pytest.raises(OutOfBlocks, match="3 blocks are needed, and 2 of 3"):
        pool.take(3)
    assert pool.available == 2


def test_what_was_read_is_found_again_in_whole_blocks_and_in_a_part_of_the_next() -> None:
    pool = BlockPool(8)
    blocks = known(pool, TEXT)
    assert pool.find("a", TEXT) == (blocks, 3 * BLOCK)
    assert pool.find("a", [*TEXT[: BLOCK + 5], -1, -2]) == (blocks[:2], BLOCK + 5)
    assert pool.find("a", [*TEXT[:BLOCK], -1]) == (blocks[:1], BLOCK)
    assert pool.find("a", TEXT[:7]) == (blocks[:1], 7)
    assert pool.find("a", [-1, *TEXT]) == ([], 0)


def test_tenants_do_not_find_what_others_have_read() -> None:
    pool = BlockPool(8)
    known(pool, TEXT)
    assert pool.find("b", TEXT) == ([], 0)


def test_the_end_of_what_was_idle_for_longest_is_forgotten_first() -> None:
    pool = BlockPool(6)
    old = known(pool, TEXT)
    new = known(pool, [-token for token in TEXT])
    pool.take(1)
    assert pool.find("a", TEXT) == (old[:2], 2 * BLOCK)
    assert pool.find("a", [-token for token in TEXT]) == (new, 3 * BLOCK)


def test_nothing_goes_on_after_a_block_that_was_forgotten() -> None:
    """A later block can be in use while an earlier one is idle: it is not found any more, and free once it is left."""
    pool = BlockPool(3)
    blocks = known(pool, TEXT)
    pool.share(blocks[2:])
    taken = pool.take(2)
    assert sorted(taken) == sorted(blocks[:2])
    assert pool.find("a", TEXT) == ([], 0)
    pool.release(blocks[2:])
    assert pool.take(1) == blocks[2:]


def test_a_block_that_is_shared_or_known_is_nobodys_own() -> None:
    pool = BlockPool(4)
    (own,) = pool.take(1)
    assert pool.is_own(own)
    pool.share([own])
    assert not pool.is_own(own)
    pool.release([own])
    pool.know("a", TEXT[:BLOCK], [own])
    assert not pool.is_own(own)


def test_the_same_text_in_other_blocks_is_known_once() -> None:
    pool = BlockPool(6)
    first = pool.take(3)
    pool.know("a", TEXT, first)
    second = pool.take(3)
    pool.know("a", TEXT, second)
    assert pool.find("a", TEXT) == (first, 3 * BLOCK)
    pool.release(second)
    assert pool.available == 3


def test_of_a_tenant_whose_blocks_were_forgotten_nothing_is_left() -> None:
    pool = BlockPool(2)
    for number in range(20):
        blocks = pool.take(1)
        pool.know(f"tenant {number}", range(BLOCK if number % 2 else BLOCK - 1), blocks)
        pool.know(f"late {number}", range(2 * BLOCK), blocks * 2, since=1)
        pool.release(blocks)
    assert pool.tenants == 2, "as many as there are blocks"
