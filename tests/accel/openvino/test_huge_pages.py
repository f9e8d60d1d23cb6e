"""Memory of packed weights is moved to huge pages where the system has them; contents never change."""

import sys

import numpy as np
import pytest

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install openvino")

from antiphon.accel.engines.openvino import runtime


def test_large_blocks_keep_their_contents() -> None:
    numbers = np.arange(2**21, dtype=np.int64)
    runtime.use_huge_pages()
    assert np.array_equal(numbers, np.arange(2**21))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_blocks_are_whole_huge_pages() -> None:
    numbers = np.ones(2**23, dtype=np.int64)
    first, last = numbers.ctypes.data, numbers.ctypes.data + numbers.nbytes
    blocks = list(runtime._large_blocks())
    assert {start % runtime.HUGE_PAGE for start, _ in blocks} == {0} == {size % runtime.HUGE_PAGE for _, size in blocks}
    covered = sum(max(min(start + size, last) - max(start, first), 0) for start, size in blocks)
    assert covered >= numbers.nbytes - 2 * runtime.HUGE_PAGE


def test_a_system_without_madvise_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[object] = []
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    monkeypatch.setattr(runtime, "_large_blocks", lambda: searched.append("blocks"))
    runtime.use_huge_pages()
    assert searched == []


def test_the_heap_counts_and_files_do_not() -> None:
    lines = [
        "55d0c0000000-55d0e0000000 rw-p 00000000 00:00 0                          [heap]",
        "7f00c0000000-7f00e0000000 rw-p 00000000 00:00 0 ",
        "7f10c0000000-7f10e0000000 rw-p 00000000 00:01 77  /weights.bin",
        "7f20c0000000-7f20e0000000 r--p 00000000 00:00 0 ",
        "7f30c0000000-7f30e0000000 rw-p 00000000 00:00 0                          [stack]",
    ]
    found = [match[1] for match in runtime.ANONYMOUS.finditer("\n".join(lines))]
    assert found == ["55d0c0000000", "7f00c0000000"]
