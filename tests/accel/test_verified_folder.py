"""A verified folder is complete or written again, even if writing is interrupted or another process writes it too."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from antiphon.accel.files import MANIFEST, is_intact, verified_folder

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
    ("name", "harm"),
    [
        ("model.bin", Path.unlink),
        ("model.bin", cut),
        ("model.bin", flip),
        (MANIFEST, Path.unlink),
        (MANIFEST, cut),
    ],
)
def test_harm_is_noticed_and_mended(tmp_path: Path, name: str, harm: Callable[[Path], None]) -> None:
    folder = verified_folder(tmp_path / "model", write)
    assert is_intact(folder)
    harm(folder / name)
    assert not is_intact(folder)
    assert is_intact(verified_folder(folder, write))
    assert (folder / "model.bin").read_bytes() == WEIGHTS


def test_a_failed_writing_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    folder = verified_folder(tmp_path / "model", write)
    cut(folder / "config.json")

    def fail(beside: Path) -> None:
        (beside / "model.bin").write_bytes(b"half")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        verified_folder(folder, fail)
    assert (folder / "model.bin").read_bytes() == WEIGHTS
    assert list(tmp_path.iterdir()) == [folder]


def test_a_folder_that_another_process_writes_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "model"

    def write_late(beside: Path) -> None:
        verified_folder(folder, write)
        (beside / "model.bin").write_bytes(b"late")

    verified_folder(folder, write_late)
    assert (folder / "model.bin").read_bytes() == WEIGHTS
    assert is_intact(folder)
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
    folder = verified_folder(tmp_path / "model", write)
    cut(folder / "config.json")
    request.getfixturevalue("little_room")
    with pytest.raises(OSError, match=r"There is no room for .*model: the disk is full, or .* make room and try again"):
        verified_folder(folder, lambda beside: save(beside / "model.bin"))
    assert (folder / "model.bin").read_bytes() == WEIGHTS
    assert list(tmp_path.iterdir()) == [folder]


def test_what_a_killed_process_left_is_swept_when_it_is_old(tmp_path: Path) -> None:
    old, new = tmp_path / ".unfinished-old", tmp_path / ".unfinished-new"
    old.mkdir()
    new.mkdir()
    os.utime(old, (0, 0))
    folder = verified_folder(tmp_path / "model", write)
    assert sorted(tmp_path.iterdir()) == [new, folder]


def test_processes_that_write_at_once_or_are_killed_do_not_tear_it(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path\n"
        "from antiphon.accel.files import verified_folder\n"
        "def write(folder):\n"
        "    for i in range(5):\n"
        "        (folder / str(i)).write_text(sys.argv[2] * 999)\n"
        "        if sys.argv[2] == 'k' and i == 2: os.kill(os.getpid(), 9)\n"
        "for number in range(15): verified_folder(Path(sys.argv[1], str(number)), write)"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([*command, "k"], env=environment, check=False).returncode != 0
    [left] = tmp_path.iterdir()
    assert left.name.startswith(".unfinished")
    running = [subprocess.Popen([*command, letter], env=environment, stderr=subprocess.PIPE) for letter in "abc"]
    errors = [process.communicate()[1] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], errors
    folders = [tmp_path / str(number) for number in range(15)]
    assert sorted(tmp_path.iterdir()) == sorted([left, *folders])
    for folder in folders:
        assert is_intact(folder)
        assert len({(folder / str(number)).read_text() for number in range(5)}) == 1
