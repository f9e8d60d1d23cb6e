"""Backups while a server receives uploads and removals: each has the file of every uploaded document, and no other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from antiphon.pipelines.server.collections import Collection
from antiphon.pipelines.server.documents import stored_path
from antiphon.retrieval import backup_index, read_index, restore_index
from antiphon.retrieval.index_folder import snapshot
from antiphon.retrieval.index_folder.snapshot import lock_uploads, upload_files
from tests.pipelines.server.conftest import Serve


def collection_of(client: Any) -> Collection:
    [collection] = client.app.state.service.collections.values()
    assert isinstance(collection, Collection)
    return collection


def index_folder(collection: Collection) -> Path:
    assert collection.index is not None
    return collection.index.folder


def test_backups_are_consistent_and_no_upload_fails(serve: Serve, tmp_path: Path) -> None:
    statuses: list[int] = []
    with serve() as client, ThreadPoolExecutor(1) as pool:
        collection, seen = collection_of(client), set()
        copy, uploads = tmp_path / "copy", tmp_path / "copy-uploads"
        writer = pool.submit(change_documents, client, statuses)
        while not writer.done():
            backup_index(index_folder(collection), tmp_path / "b.tar", uploads=collection.uploads)
            restore_index(tmp_path / "b.tar", copy, force=True)
            documents = {name for name in read_index(copy).passages.sources() if name.startswith("uploaded/")}
            stored = {stored_path(uploads, each): f"Visit {each[9:-4]}." for each in documents}
            assert {path: path.read_text() for path in upload_files(uploads)} == stored
            seen.add(frozenset(documents))
        writer.result()
    assert set(statuses) == {200}
    assert len(seen) > 1, "the backups saw the documents change"


def change_documents(client: TestClient, statuses: list[int]) -> None:
    """Upload documents, and remove every second one again."""
    for number in range(12):
        files = {"file": (f"{number}.txt", f"Visit {number}.".encode())}
        statuses.append(client.post("/documents", files=files).status_code)
        if number % 2:
            statuses.append(client.delete("/documents", params={"id": f"uploaded/{number}.txt"}).status_code)


def test_a_restored_document_is_listed_at_once_and_can_be_removed_again(serve: Serve, tmp_path: Path) -> None:
    with serve() as client:
        collection = collection_of(client)
        folder, uploads = index_folder(collection), collection.uploads
        assert uploads is not None
        client.post("/documents", files={"file": ("a.txt", b"Visit a.")})
        backup_index(folder, tmp_path / "b.tar", uploads=uploads)
        client.delete("/documents", params={"id": "uploaded/a.txt"})
        restore_index(tmp_path / "b.tar", folder, uploads=uploads, force=True)
        listed = [each["id"] for each in client.get("/documents").json()["data"]]
        assert "uploaded/a.txt" in listed
        assert client.delete("/documents", params={"id": "uploaded/a.txt"}).status_code == 200
        assert not stored_path(uploads, "uploaded/a.txt").exists()


def test_a_change_while_another_process_holds_the_lock_is_to_be_tried_again(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_LOCK_SECONDS", 0.05)
    with serve() as client:
        with lock_uploads(index_folder(collection_of(client))):
            refused = client.post("/documents", files={"file": ("a.txt", b"Visit a.")})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert "Another process" in refused.json()["error"]["message"]
        assert client.post("/documents", files={"file": ("a.txt", b"Visit a.")}).status_code == 200
