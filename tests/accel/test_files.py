"""A file is written whole or not at all, and whoever needs it is told when it is not."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

from antiphon.accel.files import write


def test_a_file_holds_what_was_given_or_written_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "file.bin"
    write(file, b"one")
    write(file, lambda out: out.write(b"another"), is_needed=True)
    assert file.read_bytes() == b"another"
    assert [path.name for path in file.parent.iterdir()] == ["file.bin"]


def test_what_fails_half_way_leaves_the_file_as_it_was_and_nothing_beside_it(tmp_path: Path) -> None:
    def fail(out: BinaryIO) -> None:
        out.write(b"half of")
        raise OSError("the disk is full")

    file = tmp_path / "file.bin"
    write(file, b"whole")
    write(file, fail)
    with pytest.raises(OSError, match="the disk is full"):
        write(file, fail, is_needed=True)
    assert file.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [file]


def test_a_cache_that_cannot_be_written_is_done_without_and_a_needed_file_is_not(tmp_path: Path) -> None:
    (tmp_path / "no-folder").write_text("a file", encoding="utf-8")
    write(tmp_path / "no-folder" / "file", b"")
    with pytest.raises(OSError, match="no-folder"):
        write(tmp_path / "no-folder" / "file", b"", is_needed=True)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
def test_a_private_file_is_its_owners_alone_and_any_other_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write(tmp_path / "private", b"")
        write(tmp_path / "shared", b"", is_private=False)
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("private", "shared")] == [0o600, 0o644]
