"""One writer at a time, and an index that only its owner can read unless its folder allows more."""

import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from antiphon.retrieval import HashEmbedder, Passage, build_index, index_passages, read_index, update_index
from antiphon.retrieval.vector_index.flat import Vectors

SLOW = """
import sys
from antiphon.retrieval import HashEmbedder, build_index

class Slow(HashEmbedder):
    def embed_documents(self, texts):
        print("embedding", flush=True)
        sys.stdin.readline()
        return super().embed_documents(texts)

build_index([sys.argv[1]], sys.argv[2], embedder=Slow())
"""
TOLD = "Another process is writing to the index in .*; wait until it is done"
posix = pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")


class Unused(HashEmbedder):
    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        raise AssertionError("nothing is to be embedded")


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("Bees make honey.")
    return tmp_path / "docs"


@contextmanager
def indexing(docs: Path, out: Path) -> Iterator[subprocess.Popen[str]]:
    """Start another process, and wait until it is embedding."""
    command = [sys.executable, "-c", SLOW, str(docs), str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "embedding\n"
        yield process
        process.kill()


def test_a_second_run_is_refused_before_it_reads_or_embeds(docs: Path, tmp_path: Path) -> None:
    out = tmp_path / "index"
    with indexing(docs, out) as first:
        for _ in range(2):
            with pytest.raises(BlockingIOError, match=TOLD):
                build_index([docs], out, embedder=Unused())
            with pytest.raises(BlockingIOError, match=TOLD):
                index_passages([Passage.at("s", 0, "text")], out, Unused())
        first.communicate("\n")
        assert first.returncode == 0
    assert [passage.text for passage in read_index(out).passages] == ["Bees make honey."]
    assert build_index([docs], out, embedder="hash").reused == 1


def test_a_second_thread_is_refused_as_well(docs: Path, tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Waiting(HashEmbedder):
        def embed_documents(self, texts: Sequence[str]) -> Vectors:
            begun.set()
            assert go_on.wait(60)
            return super().embed_documents(texts)

    thread = threading.Thread(target=lambda: build_index([docs], tmp_path / "index", embedder=Waiting()))
    thread.start()
    assert begun.wait(60)
    with pytest.raises(BlockingIOError, match=TOLD):
        build_index([docs], tmp_path / "index", embedder=Unused())
    go_on.set()
    thread.join()
    assert len(read_index(tmp_path / "index").passages) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_the_lock_of_a_killed_process_is_released(docs: Path, tmp_path: Path) -> None:
    with indexing(docs, tmp_path / "index") as first:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
    assert build_index([docs], tmp_path / "index", embedder="hash").passages == 1


def test_a_failed_run_removes_only_the_folders_that_it_created(docs: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for out in (tmp_path / "new" / "deep" / "index", tmp_path / "there" / "index"):
        with pytest.raises(AssertionError):
            build_index([docs], out, embedder=Unused())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["docs", "there"]
    assert list((tmp_path / "there").iterdir()) == []


def permissions(folder: Path) -> dict[str, int]:
    paths = [folder, *folder.rglob("*")]
    return {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in paths}


@posix
@pytest.mark.parametrize("setting", ["flat", "compact"])
def test_a_new_index_can_be_read_by_its_owner_only(tmp_path: Path, setting: str) -> None:
    before = os.umask(0)
    try:
        given = [Passage.at("s", number, f"Passage {number}.") for number in range(60)]
        index_passages(given[:50], tmp_path / "index", HashEmbedder(), setting=setting)
        update_index(tmp_path / "index", HashEmbedder(), upsert=given[50:])
    finally:
        os.umask(before)
    found = permissions(tmp_path / "index")
    assert len(found) >= 8
    assert {mode for name, mode in found.items() if name == "." or (name.startswith("gen-") and "/" not in name)} == {
        0o700
    }
    assert {mode for name, mode in found.items() if "/" in name or name in ("CURRENT", ".lock")} == {0o600}


@posix
@pytest.mark.parametrize(("shared", "files"), [(0o755, 0o644), (0o750, 0o640), (0o770, 0o660)])
def test_an_index_in_a_shared_folder_gets_its_permissions(tmp_path: Path, shared: int, files: int) -> None:
    folder = tmp_path / "index"
    folder.mkdir()
    folder.chmod(shared)
    before = os.umask(0o077)
    try:
        index_passages([Passage.at("s", 0, "text")], folder, HashEmbedder())
    finally:
        os.umask(before)
    found = permissions(folder)
    assert {found["."], found["gen-000001"]} == {shared}
    assert {found[name] for name in ("CURRENT", ".lock", "gen-000001/manifest.json")} == {files}
