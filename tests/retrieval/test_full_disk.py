"""A full disk raises one error whichever file fills it; the old index stays, and no temporary file is left."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from antiphon.retrieval import HashEmbedder, Passage, index_passages, read_index, update_index
from antiphon.retrieval.vector_index.flat import Vectors

pytestmark = pytest.mark.slow

SENTENCE = r"There is no room for the index in .*: the disk is full, or a limit .* What was there is as it was; make"


def passages(count: int, version: int = 0) -> list[Passage]:
    texts = (f"Passage {number}, version {version}, about bees, honey and wax." for number in range(count))
    return [Passage.at("s", number, text) for number, text in enumerate(texts)]


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """Mount a file system of 2 MB, outside of pytest's folders because pytest deletes those."""
    folder = Path(tempfile.mkdtemp(prefix="antiphon-small-disk-"))
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        folder.rmdir()
        pytest.skip("no right to mount a small file system here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
        folder.rmdir()


def fill(disk: Path, free: int) -> None:
    """Fill the disk until only ``free`` bytes are free."""
    with (disk / "filling").open("wb") as file:
        status = os.statvfs(disk)
        file.write(b"\0" * (status.f_bavail * status.f_frsize - free))


def test_a_change_on_a_full_disk_changes_nothing(small_disk: Path) -> None:
    index_passages(passages(40), small_disk / "index", HashEmbedder())
    fill(small_disk, 30_000)
    with pytest.raises(OSError, match=SENTENCE):
        update_index(small_disk / "index", HashEmbedder(), upsert=passages(100, 2))
    assert list(read_index(small_disk / "index").passages) == passages(40)


def test_too_little_space_is_an_error_before_anything_is_embedded(small_disk: Path) -> None:
    class Unused(HashEmbedder):
        def embed_documents(self, texts: Sequence[str]) -> Vectors:
            raise AssertionError("nothing is to be embedded")

    with pytest.raises(OSError, match=r"needs at least 3\.\d MB, and \d\.\d MB are free at .* Nothing was written"):
        index_passages(passages(3000), small_disk / "index", Unused())
    assert not (small_disk / "index").exists()


LIMITED = """
import resource, sys
from pathlib import Path
from antiphon.retrieval import HashEmbedder, index_passages
from tests.retrieval.test_full_disk import passages

for folder in sys.argv[1:]:
    setting, limit = Path(folder).name.split("-")
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))
    try:
        index_passages(passages(300, 1), Path(folder), HashEmbedder(), setting=setting)
    except OSError as error:
        print(error)
"""


SETTINGS, LIMITS = ("flat", "compact"), (1_000, 40_000, 90_000)


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, str]:
    """Index into each folder under a file size limit, and return the errors."""
    here = tmp_path_factory.mktemp("limited")
    folders = [here / f"{setting}-{limit}" for setting in SETTINGS for limit in LIMITS]
    for folder in folders:
        index_passages(passages(10), folder, HashEmbedder())
    command = [sys.executable, "-c", LIMITED, *map(str, folders)]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    assert told.stderr == ""
    return dict(zip(folders, told.stdout.splitlines(), strict=True))


@pytest.mark.skipif(sys.platform == "win32", reason="no limits on files")
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("limit", LIMITS)
def test_a_file_size_limit_raises_the_same_error_as_a_full_disk(
    limited: dict[Path, str], setting: str, limit: int
) -> None:
    [(folder, told)] = [each for each in limited.items() if each[0].name == f"{setting}-{limit}"]
    assert re.match(SENTENCE, told)
    assert list(read_index(folder).passages) == passages(10)
