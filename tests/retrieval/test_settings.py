"""Settings: the lists, codes and probes of each setting at every size."""

import pytest

from antiphon.retrieval import choose_setting


@pytest.mark.parametrize(
    ("count", "dim", "factory"),
    [
        (1, 1, "Flat"),
        (48_828, 1024, "Flat"),
        (48_829, 1024, "IVF1024,PQ128x4fsr"),
        (130_208, 384, "Flat"),
        (200_000, 384, "IVF2048,PQ128x4fsr"),
        (1_000_000, 1024, "IVF4096,PQ128x4fsr"),
        (10_000_000, 1024, "IVF16384_HNSW32,PQ128x4fsr"),
        (100_000_000, 1024, "IVF32768_HNSW32,PQ128x4fsr"),
        (1_000_000, 100, "IVF4096,PQ50x4fsr"),
        (1_000_000, 99, "IVF4096,PQ49x4fsr"),
    ],
)
def test_auto_is_flat_while_small_and_compact_above(count: int, dim: int, factory: str) -> None:
    setting = choose_setting("auto", count, dim)
    assert setting.factory == factory
    assert setting.is_flat == (count * dim <= 50_000_000)
    if not setting.is_flat:
        assert (setting.rotated, setting.probes, setting.rescored) == (min(256, dim - dim % 2), None, 3)
