"""Generations: a killed writer never damages an index, changed bytes are refused, other files are not touched."""

import hashlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.retrieval import IndexCorrupt, IndexMismatch, IndexNotFound
from antiphon.retrieval.index_folder.generations import read_generation, write_generation
from antiphon.retrieval.index_folder.write_lock import lock_for_writing

pytestmark = pytest.mark.slow


def put(folder: Path, text: str) -> Path:
    def write(beside: Path) -> None:
        (beside / "a.txt").write_text(text)
        (beside / "b.txt").write_text(text[::-1])

    with lock_for_writing(folder):
        return write_generation(folder, write, {"text": text})


def get(folder: Path) -> str:
    generation = read_generation(folder)
    text = (generation.folder / "a.txt").read_text()
    assert generation.facts["text"] == text == (generation.folder / "b.txt").read_text()[::-1]
    return text


def test_the_last_generation_is_current_and_two_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "index"
    names = [put(folder, text).name for text in ("one", "two", "three")]
    assert get(folder) == "three"
    assert names == ["gen-000001", "gen-000002", "gen-000003"]
    assert sorted(path.name for path in folder.glob("[!.]*")) == ["CURRENT", "gen-000002", "gen-000003"]


def test_a_reader_of_the_previous_generation_can_go_on(tmp_path: Path) -> None:
    put(tmp_path, "one")
    before = read_generation(tmp_path)
    put(tmp_path, "two")
    assert (before.folder / "a.txt").read_text() == "one"


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.retrieval.test_generations import put

folder, last = Path(sys.argv[1]), int(sys.argv[2])
seen = 0

def watch(event, arguments):
    global seen
    if event in {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir"} and str(folder) in str(arguments[0]):
        seen += 1
        if seen == last:
            os.kill(os.getpid(), signal.SIGKILL)

for killed_at in range(1, last + 1):
    child = os.fork()
    if not child:
        last = killed_at
        sys.addaudithook(watch)
        put(folder / str(killed_at), "new")
        os._exit(0)
    print(os.WTERMSIG(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
@pytest.mark.parametrize("before", ["", "old"])
def test_after_a_kill_at_any_disk_operation_the_old_or_the_new_generation_loads(tmp_path: Path, before: str) -> None:
    """A process is killed at each operation that opens, renames, creates or removes a file."""
    touches = 40
    for number in range(1, touches + 1) if before else ():
        for text in ("older", before):
            put(tmp_path / str(number), text)
    command = [sys.executable, "-c", KILLED, str(tmp_path), str(touches)]
    signals = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert signals.count(str(int(signal.SIGKILL))) >= 15, "the commit touches the disk at least so often"
    assert signals[-1] == "0", "the last ones live: every touch was tried"
    found = []
    for number in range(1, touches + 1):
        try:
            found.append(get(tmp_path / str(number)))
        except IndexNotFound:
            found.append("")
    assert set(found) == {before, "new"}
    assert found == sorted(found, key=[before, "new"].index), "once the new one is there, it stays"
    for number in range(1, touches + 1):
        put(tmp_path / str(number), "next")
        assert get(tmp_path / str(number)) == "next"
        left = [path.name for path in (tmp_path / str(number)).iterdir() if path.name not in ("CURRENT", ".lock")]
        assert len(left) <= 2
        assert not any(name.startswith(".tmp") for name in left)


@pytest.mark.parametrize("name", ["CURRENT", "manifest.json", "a.txt", "b.txt"])
def test_any_flipped_bit_or_missing_byte_is_refused_with_the_name_of_the_file(tmp_path: Path, name: str) -> None:
    generation = put(tmp_path, "some text")
    path = tmp_path / name if name == "CURRENT" else generation / name
    content = path.read_bytes()
    torn = [content[:-1], content + b" ", b""]
    for place in range(len(content)):
        torn.append(content[:place] + bytes([content[place] ^ (1 << place % 8)]) + content[place + 1 :])
    for changed in torn:
        path.write_bytes(changed)
        with pytest.raises(IndexCorrupt, match=r"The index is damaged: .* Make it again: antiphon index PATH"):
            read_generation(tmp_path)
    path.write_bytes(content)
    assert get(tmp_path) == "some text"


def test_a_missing_index_is_an_error_with_the_command_that_creates_one(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "gone"):
        with pytest.raises(IndexNotFound, match=rf"{folder.name} holds no index; make one: antiphon index PATH"):
            read_generation(folder)


def test_another_format_is_refused_and_named(tmp_path: Path) -> None:
    manifest = put(tmp_path, "text") / "manifest.json"
    content = json.dumps({**json.loads(manifest.read_bytes()), "format": 99}).encode()
    manifest.write_bytes(content)
    (tmp_path / "CURRENT").write_text(f"gen-000001 {hashlib.sha256(content).hexdigest()}\n")
    with pytest.raises(IndexMismatch, match="has format 99; this version reads format 3"):
        read_generation(tmp_path)


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(
        ValueError, match=r"holds thesis\.txt, which is no part of an index; give a new or an empty folder"
    ):
        put(tmp_path, "text")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_failed_write_leaves_the_old_generation_and_no_temporary_files(tmp_path: Path) -> None:
    put(tmp_path, "old")

    def fail(beside: Path) -> None:
        (beside / "half.txt").write_text("half")
        raise RuntimeError("no more room")

    with pytest.raises(RuntimeError, match="no more room"):
        write_generation(tmp_path, fail, {})
    assert get(tmp_path) == "old"
    assert list(tmp_path.glob(".tmp-*")) == []


def test_a_damaged_pointer_deletes_no_generation_before_a_new_one_exists(tmp_path: Path) -> None:
    put(tmp_path, "old")
    (tmp_path / "CURRENT").write_text("?")

    def fail(beside: Path) -> None:
        raise RuntimeError("no more room")

    with pytest.raises(RuntimeError, match="no more room"):
        write_generation(tmp_path, fail, {})
    assert (tmp_path / "gen-000001" / "a.txt").read_text() == "old"
    put(tmp_path, "new")
    assert get(tmp_path) == "new"
