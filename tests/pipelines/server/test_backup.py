"""The backup script of the documentation, while a server receives uploads and removals and the index grows."""

import re
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from antiphon.pipelines.server.collections import Collection
from antiphon.pipelines.server.documents import stored_path
from antiphon.retrieval import HashEmbedder, build_index, read_index
from antiphon.retrieval.index_folder import write_lock
from antiphon.retrieval.index_folder.write_lock import lock_uploads
from antiphon.retrieval.local_index import LocalIndex
from tests.pipelines.server.conftest import Serve

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The script of the page on operation, as a file."""
    if shutil.which("flock") is None:
        pytest.skip("flock is not installed")
    [text] = re.findall(r"```sh\n(# sh backup\.sh .*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    file = tmp_path / "backup.sh"
    file.write_text(text)
    return file


def back_up(script: Path, folder: Path, archive: Path) -> None:
    done = subprocess.run(["sh", script, folder, archive], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def restore(archive: Path, folder: Path) -> tuple[set[str], dict[Path, str]]:
    """Extract an archive; return the sources of the index, and the uploaded files with their texts."""
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    assert {path.name for path in folder.iterdir()} == {"index", "index-uploads"}
    files = {path: path.read_text() for path in (folder / "index-uploads").iterdir()}
    return set(read_index(folder / "index").passages.sources()), files


def collection_of(client: Any) -> Collection:
    [(name, collection)] = client.app.state.service.collections.items()
    assert collection.index is not None
    folder = index_folder(collection)
    collection = replace(collection, uploads=folder.with_name(f"{folder.name}-uploads"))
    client.app.state.service.collections[name] = collection
    assert isinstance(collection, Collection)
    return collection


def index_folder(collection: Collection) -> Path:
    assert isinstance(collection.index, LocalIndex)
    return collection.index.folder


def test_a_backup_during_changes_has_each_upload_in_both_places_or_in_none(
    serve: Serve, script: Path, tmp_path: Path
) -> None:
    with serve() as client, ThreadPoolExecutor(2) as pool:
        folder = index_folder(collection_of(client))
        seen: set[frozenset[str]] = set()
        writers = [pool.submit(change_documents, client), pool.submit(grow_index, folder, tmp_path)]
        while not all(writer.done() for writer in writers):
            back_up(script, folder, tmp_path / "b.tar.gz")
            copy = tmp_path / f"copy{len(seen)}"
            sources, files = restore(tmp_path / "b.tar.gz", copy)
            uploaded = {source for source in sources if source.startswith("uploaded/")}
            expected = {stored_path(copy / "index-uploads", each): f"Visit {each[9:-4]}." for each in uploaded}
            assert files == expected
            seen.add(frozenset(sources))
            shutil.rmtree(copy)
        for writer in writers:
            writer.result()
    assert len(seen) > 2, "the backups saw the documents change"
    assert [path.name for path in folder.parent.iterdir() if "backup" in path.name] == []


def change_documents(client: TestClient) -> None:
    """Upload documents and remove every second document again; repeat requests while the server is busy."""
    for number in range(12):
        name, text = f"{number}.txt", f"Visit {number}.".encode()
        until_done(partial(client.post, "/documents", files={"file": (name, text)}))
        if number % 2:
            until_done(partial(client.delete, "/documents", params={"id": f"uploaded/{name}"}))


def until_done(request: Callable[[], Any]) -> None:
    while (response := request()).status_code == 503:
        time.sleep(0.01)
    assert response.status_code == 200, response.text


def grow_index(folder: Path, documents: Path) -> None:
    """Index files one after the other, as `antiphon index --add` does; a writer that meets another one tries again."""
    for number in range(12):
        file = documents / f"note{number}.txt"
        file.write_text(f"Note {number}.")
        while True:
            try:
                build_index([file], folder, embedder=HashEmbedder(), add=True)
                break
            except BlockingIOError:
                time.sleep(0.01)
        time.sleep(0.1)


def test_a_change_while_another_process_holds_the_lock_is_to_be_tried_again(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_lock, "_UPLOADS_SECONDS", 0.05)
    with serve() as client:
        with lock_uploads(index_folder(collection_of(client))):
            refused = client.post("/documents", files={"file": ("a.txt", b"Visit a.")})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert "Another process" in refused.json()["error"]["message"]
        assert client.post("/documents", files={"file": ("a.txt", b"Visit a.")}).status_code == 200
