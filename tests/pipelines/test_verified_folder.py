"""A verified folder is complete or written again, even if writing is interrupted or another process writes it too."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from antiphon.pipelines.models.verified_folder import (
    MANIFEST,
    VerificationError,
    verified_folder,
    verify_folder,
    write_verified_folder,
)

WEIGHTS = b"weights" * 1000


def write(folder: Path) -> None:
    (folder / "model.bin").write_bytes(WEIGHTS)
    (folder / "config.json").write_text("{}")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    found = path.stat()
    path.write_bytes(b"W" + path.read_bytes()[1:])
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 1))


@pytest.mark.parametrize(
    ("name", "harm", "complaint"),
    [
        ("model.bin", Path.unlink, r"model\.bin is missing"),
        ("model.bin", cut, r"model\.bin has 6999 bytes; 7000 were written"),
        ("model.bin", flip, r"model\.bin was changed"),
        (MANIFEST, Path.unlink, r"manifest\.json is missing"),
        (MANIFEST, cut, r"manifest\.json is not a manifest"),
    ],
)
def test_harm_is_noticed_named_and_mended(
    tmp_path: Path, name: str, harm: Callable[[Path], None], complaint: str
) -> None:
    folder = write_verified_folder(tmp_path / "model", write)
    verify_folder(folder)
    harm(folder / name)
    with pytest.raises(VerificationError, match=complaint):
        verify_folder(folder)
    verify_folder(verified_folder(folder, write))
    assert (folder / "model.bin").read_bytes() == WEIGHTS


def test_a_failed_writing_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    folder = write_verified_folder(tmp_path / "model", write)

    def fail(beside: Path) -> None:
        (beside / "model.bin").write_bytes(b"half")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        write_verified_folder(folder, fail)
    verify_folder(folder)
    assert list(tmp_path.iterdir()) == [folder]


def save_bytes(path: Path) -> None:
    path.write_bytes(WEIGHTS)


def save_weights(path: Path) -> None:
    save_file({"weights": np.zeros(100_000, dtype=np.float32)}, path)


@pytest.fixture
def little_room() -> Iterator[None]:
    """Limit files to 1,000 bytes; writing more raises an OSError, as a full disk does."""
    resource = pytest.importorskip("resource", reason="no limits on files here")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("save", [save_bytes, save_weights])
def test_a_full_disk_raises_one_clear_error_and_keeps_the_old_files(
    tmp_path: Path, save: Callable[[Path], None], request: pytest.FixtureRequest
) -> None:
    folder = write_verified_folder(tmp_path / "model", write)
    request.getfixturevalue("little_room")
    with pytest.raises(
        OSError, match=r"There is no room for .*model: the disk is full, or .* The old files are unchanged"
    ):
        write_verified_folder(folder, lambda beside: save(beside / "model.bin"))
    verify_folder(folder)
    assert list(tmp_path.iterdir()) == [folder]


def test_what_a_killed_process_left_is_swept_when_it_is_old(tmp_path: Path) -> None:
    old, new = tmp_path / "model.unfinished-old", tmp_path / "model.unfinished-new"
    old.mkdir()
    new.mkdir()
    os.utime(old, (0, 0))
    folder = write_verified_folder(tmp_path / "model", write)
    assert sorted(tmp_path.iterdir()) == [folder, new]


def test_processes_that_write_at_once_do_not_tear_it(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from antiphon.pipelines.models.verified_folder import verify_folder, write_verified_folder\n"
        "write = lambda folder: [(folder / str(i)).write_text(sys.argv[2] * 999) for i in range(5)]\n"
        "for _ in range(15): write_verified_folder(Path(sys.argv[1]), write)"
    )
    folder = tmp_path / "model"
    command = [sys.executable, "-c", script, str(folder)]
    running = [subprocess.Popen([*command, letter], stderr=subprocess.PIPE) for letter in "abc"]
    errors = [process.communicate()[1] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], errors
    verify_folder(folder)
    assert len({(folder / str(number)).read_text() for number in range(5)}) == 1
    assert list(tmp_path.iterdir()) == [folder]
