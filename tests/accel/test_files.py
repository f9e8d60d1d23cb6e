"""Files are written atomically, folders are temporary until they are renamed, and the cache folder is writable."""

import errno
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

from antiphon.accel.files import (
    is_disk_full,
    remove_stale_folders,
    write_cache_file,
    write_file,
)


def test_a_failed_write_leaves_the_old_content_and_no_temporary_file(tmp_path: Path) -> None:
    def fail(out: BinaryIO) -> None:
        out.write(b"half of")
        raise OSError("the disk is full")

    file = tmp_path / "file.bin"
    write_file(file, b"whole")
    write_cache_file(file, fail)
    with pytest.raises(OSError, match="the disk is full"):
        write_file(file, fail)
    assert file.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [file]


def test_only_a_cache_file_ignores_that_it_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "no-folder").write_text("a file", encoding="utf-8")
    write_cache_file(tmp_path / "no-folder" / "file", b"")
    with pytest.raises(OSError, match="no-folder"):
        write_file(tmp_path / "no-folder" / "file", b"")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
def test_a_file_is_private_by_default_has_the_given_mode_or_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_file(tmp_path / "private", b"")
        write_file(tmp_path / "group", b"", mode=0o664)
        write_file(tmp_path / "shared", b"", mode=None)
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("private", "group", "shared")]
    assert modes == [0o600, 0o664, 0o644]


def test_only_old_folders_with_the_prefix_are_removed(tmp_path: Path) -> None:
    for name in (".new-old", ".new-young", "other"):
        (tmp_path / name).mkdir()
    os.utime(tmp_path / ".new-old", (0, 0))
    os.utime(tmp_path / "other", (0, 0))
    remove_stale_folders(tmp_path, ".new-", older_than=3600)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".new-young", "other"]


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EFBIG, "File too large"), True),
        (OSError(errno.EACCES, "Permission denied"), False),
        (RuntimeError(f"I/O error: No space left on device (os error {errno.ENOSPC})"), True),
        (sqlite3.OperationalError("syntax error"), False),
    ],
)
def test_a_full_disk_is_recognised_from_the_system_and_from_libraries_in_rust(error: Exception, is_full: bool) -> None:
    assert is_disk_full(error) is is_full


def test_who_has_the_old_file_open_reads_its_whole_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old content")
    with path.open("rb") as reader:
        write_file(path, b"new")
        assert reader.read() == b"old content"
    assert path.read_bytes() == b"new"


SHOW = "from antiphon.accel.cache_folder import cache_folder; print(cache_folder(), cache_folder().is_dir())"
UNKNOWN_USER = "import sys; sys.modules['pwd'] = None; "  # without the list of users, nobody is known


def shown(tmp_path: Path, program: str = SHOW, **environment: str) -> tuple[list[str], str]:
    """Return the folder of a process with this environment only, whether it exists, and its standard error."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    tmp_path.joinpath("tmp").mkdir(exist_ok=True)
    command = [sys.executable, "-c", program]
    own = kept | {"TMPDIR": str(tmp_path / "tmp")} | environment
    done = subprocess.run(command, env=own, cwd=tmp_path, capture_output=True, text=True, check=True)
    return done.stdout.split(), done.stderr


def test_a_home_that_cannot_be_written_is_named_once_with_the_variable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    [folder, exists], said = shown(tmp_path, HOME=str(tmp_path / "file"))
    assert (Path(folder).parent, exists) == (tmp_path / "tmp", "True")
    assert said.count("set XDG_CACHE_HOME") == 1


def test_an_unknown_user_without_a_home_gets_no_folder_named_by_a_tilde(tmp_path: Path) -> None:
    [folder, exists], said = shown(tmp_path, UNKNOWN_USER + SHOW)
    assert (Path(folder).parent, exists) == (tmp_path / "tmp", "True")
    assert "~/.cache/antiphon cannot be written" in said
    settings = "from antiphon.pipelines.cli.config import read_settings; print(read_settings())"
    assert shown(tmp_path, UNKNOWN_USER + settings)[0] == ["{}"]
    assert [each.name for each in tmp_path.iterdir()] == ["tmp"]


def test_a_usual_home_is_used_without_a_word(tmp_path: Path) -> None:
    [folder, exists], said = shown(tmp_path, HOME=str(tmp_path))
    assert (folder, exists, said) == (str(tmp_path / ".cache" / "antiphon"), "True", "")
