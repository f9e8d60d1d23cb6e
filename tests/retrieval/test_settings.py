"""Settings: the lists, codes and probes of each setting at every size."""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from antiphon.retrieval import (
    HashEmbedder,
    IndexSetting,
    Passage,
    choose_setting,
    index_passages,
    read_index,
    update_index,
)


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


@pytest.mark.parametrize("count", [1, 2, 38, 39, 78, 1000, 12_345, 60_000, 10**6, 3 * 10**7])
def test_every_list_of_compact_has_39_vectors_to_train_on(count: int) -> None:
    setting = choose_setting("compact", count, 64)
    lists = int(setting.factory.split(",")[0].removeprefix("IVF").removesuffix("_HNSW32"))
    assert lists & (lists - 1) == 0
    assert lists == 1 or lists * 39 <= count


def test_on_a_gpu_codes_have_8_bits() -> None:
    assert choose_setting("auto", 1_000_000, 1024, gpu=True).factory == "IVF4096,PQ64"
    assert choose_setting("auto", 10_000_000, 1024, gpu=True).factory == "IVF16384,PQ64"
    assert choose_setting("compact", 1000, 99, gpu=True).rotated == 96


def test_the_setting_paper_has_the_parameters_of_the_paper() -> None:
    setting = choose_setting("paper", 39 * 4096, 1024)
    assert (setting.factory, setting.probes, setting.rescored, setting.rotated) == ("IVF4096,PQ64", 16, 0, 0)


def test_the_papers_lists_are_lowered_for_few_vectors_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert choose_setting("paper", 39 * 4096 - 1, 1024).factory == "IVF2048,PQ64"
        assert choose_setting("paper", 300, 64) == IndexSetting(
            "paper", "IVF4,PQ64", 0, 4, 0, why=choose_setting("paper", 300, 64).why
        )
    assert "159,743 vectors" in caplog.messages[0]
    assert "2048 lists instead of 4,096, which need 39 vectors each and so 159,744 in all" in caplog.messages[0]


def test_the_setting_paper_needs_a_dimension_that_64_divides() -> None:
    with pytest.raises(ValueError, match="cuts a vector into 64 equal pieces, and 100 numbers are no multiple of 64"):
        choose_setting("paper", 1_000_000, 100)


def test_any_other_name_is_a_factory_string_and_a_setting_is_itself() -> None:
    setting = choose_setting("IVF10,SQ8", 1000, 8)
    assert (setting.name, setting.factory, setting.probes) == ("IVF10,SQ8", "IVF10,SQ8", None)
    assert choose_setting(setting, 5, 5) is setting
    assert choose_setting("Flat", 10**9, 100).is_flat


def test_limits_of_a_setting_are_written_with_the_index_and_kept_when_it_changes(tmp_path: Path) -> None:
    given = [Passage.at("s", number, f"Passage {number}.") for number in range(60)]
    setting = replace(choose_setting("compact", 60, 256), exact_rows=7, in_memory=8)
    index_passages(given[:50], tmp_path, HashEmbedder(), setting=setting)
    update_index(tmp_path, HashEmbedder(), upsert=given[50:])
    store = read_index(tmp_path)
    assert (store.description.exact_rows, store.description.in_memory) == (7, 8)
    assert isinstance(store.vectors, np.memmap)
