"""The block pool: user counts, prefix cache, and order of eviction."""

import pytest

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install openvino")

from antiphon.accel.engines.openvino.block_pool import BlockPool, OutOfBlocksError
from antiphon.accel.engines.openvino.paged_inputs import BLOCK_SIZE

TEXT = list(range(3 * BLOCK_SIZE))


def cached(pool: BlockPool, text: list[int], tenant: str = "a") -> list[int]:
    """Cache the blocks of a text, free them, and return them: they are idle now."""
    blocks = pool.allocate(len(text) // BLOCK_SIZE)
    pool.cache_prefix(tenant, text, blocks)
    pool.free(blocks)
    return blocks


def test_allocating_too_many_blocks_fails_and_allocates_none() -> None:
    pool = BlockPool(3)
    pool.allocate(1)
    with pytest.raises(OutOfBlocksError, match="3 blocks are needed, and 2 of 3"):
        pool.allocate(3)
    assert pool.num_available == 2


def test_a_prefix_is_found_in_full_blocks_and_a_part_of_the_next_one() -> None:
    pool = BlockPool(8)
    blocks = cached(pool, TEXT)
    assert pool.find_prefix("a", TEXT) == (blocks, 3 * BLOCK_SIZE)
    assert pool.find_prefix("a", [*TEXT[: BLOCK_SIZE + 5], -1, -2]) == (blocks[:2], BLOCK_SIZE + 5)
    assert pool.find_prefix("a", [*TEXT[:BLOCK_SIZE], -1]) == (blocks[:1], BLOCK_SIZE)
    assert pool.find_prefix("a", TEXT[:7]) == (blocks[:1], 7)
    assert pool.find_prefix("a", [-1, *TEXT]) == ([], 0)


def test_a_prefix_is_found_by_its_tenant_only() -> None:
    pool = BlockPool(8)
    cached(pool, TEXT)
    assert pool.find_prefix("b", TEXT) == ([], 0)


def test_the_last_block_of_the_least_recently_used_prefix_is_evicted_first() -> None:
    pool = BlockPool(6)
    old = cached(pool, TEXT)
    new = cached(pool, [-token for token in TEXT])
    pool.allocate(1)
    assert pool.find_prefix("a", TEXT) == (old[:2], 2 * BLOCK_SIZE)
    assert pool.find_prefix("a", [-token for token in TEXT]) == (new, 3 * BLOCK_SIZE)


def test_blocks_after_an_evicted_block_are_not_found() -> None:
    """A block that is in use while a block before it is evicted leaves the cache; its last user frees it."""
    pool = BlockPool(3)
    blocks = cached(pool, TEXT)
    pool.share(blocks[2:])
    allocated = pool.allocate(2)
    assert sorted(allocated) == sorted(blocks[:2])
    assert pool.find_prefix("a", TEXT) == ([], 0)
    pool.free(blocks[2:])
    assert pool.allocate(1) == blocks[2:]


def test_a_tenant_without_cached_blocks_is_forgotten() -> None:
    pool = BlockPool(2)
    for number in range(20):
        blocks = pool.allocate(1)
        pool.cache_prefix(f"tenant {number}", range(BLOCK_SIZE if number % 2 else BLOCK_SIZE - 1), blocks)
        pool.cache_prefix(f"late {number}", range(2 * BLOCK_SIZE), blocks * 2, first=1)
        pool.free(blocks)
    assert len(pool._roots) == 2, "as many as there are blocks"
