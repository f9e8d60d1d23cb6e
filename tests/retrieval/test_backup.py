"""Backup and restore of an index with its uploaded files: consistent while others write, checked, safe to extract."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from antiphon.pipelines.cli import app
from antiphon.retrieval import (
    HashEmbedder,
    IndexCorrupt,
    IndexMismatch,
    IndexNotFound,
    LocalIndex,
    Passage,
    Retriever,
    backup_index,
    index_passages,
    read_index,
    restore_index,
)
from antiphon.retrieval.index_folder.snapshot import lock_uploads

EMBEDDER = HashEmbedder(64)
Members = dict[str, tuple[tarfile.TarInfo, bytes]]


def open_index(folder: Path) -> Retriever:
    return Retriever.open(folder, embedder=EMBEDDER, reranker=None)


def upload(retriever: Retriever, folder: Path, uploads: Path, number: int) -> None:
    """Add a passage and its file as the server does: together under one lock."""
    with lock_uploads(folder):
        retriever.add([Passage.at(f"uploaded/{number}.txt", 0, f"Visitor {number} signed the book.")])
        (uploads / f"{number}.txt").write_text(f"Visitor {number} signed the book.")


def sources(folder: Path) -> set[str]:
    return set(read_index(folder).passages.sources())


@pytest.fixture
def index(tmp_path: Path, passages: list[Passage]) -> Path:
    """An index with one uploaded file."""
    folder = tmp_path / "shelf"
    index_passages(passages, folder, EMBEDDER)
    (tmp_path / "shelf-uploads").mkdir()
    upload(open_index(folder), folder, tmp_path / "shelf-uploads", 0)
    return folder


@pytest.mark.parametrize("name", ["backup.tar", "backup.tar.gz", "backup.tgz"])
def test_a_restored_index_and_its_uploads_equal_the_original(index: Path, tmp_path: Path, name: str) -> None:
    made = backup_index(index, tmp_path / name)
    restored = restore_index(tmp_path / name, tmp_path / "copy")
    assert restored == made
    assert (made.passages, made.uploads) == (4, 1)
    assert list(read_index(tmp_path / "copy").passages) == list(read_index(index).passages)
    assert (read_index(tmp_path / "copy").vectors == read_index(index).vectors).all()
    assert (tmp_path / "copy-uploads" / "0.txt").read_text() == "Visitor 0 signed the book."
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o700


def test_a_backup_during_uploads_has_each_upload_in_both_places_or_in_none(index: Path, tmp_path: Path) -> None:
    uploads, retriever, done = tmp_path / "shelf-uploads", open_index(index), threading.Event()

    def keep_uploading() -> None:
        for number in range(1, 25):
            upload(retriever, index, uploads, number)
        done.set()

    writer = threading.Thread(target=keep_uploading)
    writer.start()
    counts: list[int] = []
    while not done.is_set():
        backup_index(index, tmp_path / "b.tar")
        copy = tmp_path / f"copy{len(counts)}"
        restore_index(tmp_path / "b.tar", copy)
        stored = {path.name for path in copy.with_name(f"{copy.name}-uploads").iterdir()}
        assert {f"uploaded/{name}" for name in stored} | {"bees.txt"} == sources(copy)
        counts.append(len(stored))
    writer.join()
    assert len(sources(index)) == 26, "no upload failed"
    assert counts == sorted(counts)


def test_a_running_server_finds_the_restored_index(index: Path, tmp_path: Path) -> None:
    backup_index(index, tmp_path / "b.tar.gz")
    retriever = open_index(index)
    upload(retriever, index, tmp_path / "shelf-uploads", 1)
    assert isinstance(retriever.index, LocalIndex)
    assert set(retriever.index.sources()) == {"bees.txt", "uploaded/0.txt", "uploaded/1.txt"}
    restore_index(tmp_path / "b.tar.gz", index, force=True)
    assert set(retriever.index.sources()) == {"bees.txt", "uploaded/0.txt"}
    assert retriever.search("Which visitor signed the book?", 1)[0].source == "uploaded/0.txt"
    assert [path.name for path in (tmp_path / "shelf-uploads").iterdir()] == ["0.txt"]


def test_existing_documents_are_replaced_only_with_force(index: Path, tmp_path: Path) -> None:
    backup_index(index, tmp_path / "b.tar")
    upload(open_index(index), index, tmp_path / "shelf-uploads", 1)
    with pytest.raises(FileExistsError, match="holds an index already"):
        restore_index(tmp_path / "b.tar", index)
    (tmp_path / "new-uploads").mkdir()
    (tmp_path / "new-uploads" / "a.txt").write_text("kept")
    with pytest.raises(FileExistsError, match="holds files"):
        restore_index(tmp_path / "b.tar", tmp_path / "new")
    assert "uploaded/1.txt" in sources(index)
    assert not (tmp_path / "new").exists()


def test_other_files_next_to_the_uploads_are_neither_backed_up_nor_removed(index: Path, tmp_path: Path) -> None:
    other = tmp_path / "shelf-uploads" / "my notes.txt"
    other.write_text("kept")
    assert backup_index(index, tmp_path / "b.tar").uploads == 1
    assert restore_index(tmp_path / "b.tar", index, force=True).uploads == 1
    assert other.read_text() == "kept"


def rewritten(file: Path, change: Callable[[Members], None]) -> Path:
    """Write an archive again after a change of its members."""
    with tarfile.open(file) as archive:
        members = {each.name: (each, archive.extractfile(each).read()) for each in archive}  # type: ignore[union-attr]
    change(members)
    changed = file.with_name("changed.tar")
    with tarfile.open(changed, "w") as archive:
        for header, content in members.values():
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))
    return changed


def manifest_with(**more: Any) -> Callable[[Members], None]:
    def change(members: Members) -> None:
        header, content = members["manifest.json"]
        members["manifest.json"] = header, json.dumps(json.loads(content) | more).encode()

    return change


def renamed(name: str) -> Callable[[Members], None]:
    """Give the uploaded file another name, also in the manifest."""

    def change(members: Members) -> None:
        header, content = members["manifest.json"]
        members["manifest.json"] = header, content.replace(b"uploads/0.txt", name.encode())
        members["uploads/0.txt"][0].name = name

    return change


def as_link(members: Members) -> None:
    header, _ = members["uploads/0.txt"]
    header.type, header.linkname = tarfile.SYMTYPE, "/etc/passwd"
    members["uploads/0.txt"] = header, b""


def with_other_text(members: Members) -> None:
    header, content = members["uploads/0.txt"]
    members["uploads/0.txt"] = header, content[::-1]


def with_more(members: Members) -> None:
    members["uploads/1.txt"] = tarfile.TarInfo("uploads/1.txt"), b"more"


def with_nested_manifest(members: Members) -> None:
    members["manifest.json"] = members["manifest.json"][0], b"[" * 200_000


def without_vectors(members: Members) -> None:
    del members["index/gen-000002/vectors.npy"]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (renamed("/tmp/escaped.txt"), IndexCorrupt, "names the file '/tmp/escaped.txt'"),
        (renamed("uploads/../../escaped.txt"), IndexCorrupt, "names the file"),
        (renamed("uploads/.hidden"), IndexCorrupt, "names the file"),
        (as_link, IndexCorrupt, "has the member 'uploads/0.txt'"),
        (with_other_text, IndexCorrupt, "differs from its checksum"),
        (with_more, IndexCorrupt, "has the member 'uploads/1.txt'"),
        (without_vectors, IndexCorrupt, "lacks 'index/gen-000002/vectors.npy'"),
        (lambda members: members.pop("manifest.json"), IndexCorrupt, "does not begin with a manifest"),
        (manifest_with(format=2), IndexMismatch, "backup of format 2, made by a newer version"),
        (manifest_with(files=3), IndexCorrupt, "manifest of another program"),
        (manifest_with(files={"index/CURRENT": {"bytes": "9"}}), IndexCorrupt, "manifest of another program"),
        (manifest_with(files={"index/CURRENT": {"bytes": -9, "sha256": ""}}), IndexCorrupt, "of another program"),
        (with_nested_manifest, IndexCorrupt, "cannot be read"),
    ],
)
def test_a_changed_or_unsafe_archive_is_refused_and_leaves_nothing(
    index: Path, tmp_path: Path, change: Callable[[Members], None], error: type[Exception], message: str
) -> None:
    backup_index(index, tmp_path / "b.tar")
    changed = rewritten(tmp_path / "b.tar", change)
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(error, match=message):
        restore_index(changed, tmp_path / "copy")
    assert {path.name for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_truncated_archive_is_refused_and_the_index_stays(index: Path, tmp_path: Path, share: float) -> None:
    backup_index(index, tmp_path / "b.tar.gz")
    content = (tmp_path / "b.tar.gz").read_bytes()
    (tmp_path / "b.tar.gz").write_bytes(content[: int(share * len(content))])
    before = list(read_index(index).passages)
    with pytest.raises(IndexCorrupt, match="no intact backup"):
        restore_index(tmp_path / "b.tar.gz", index, force=True)
    assert list(read_index(index).passages) == before


def test_a_damaged_index_and_a_missing_one_are_not_backed_up(index: Path, tmp_path: Path) -> None:
    with pytest.raises(IndexNotFound, match="holds no index"):
        backup_index(tmp_path / "none", tmp_path / "b.tar")
    with pytest.raises(ValueError, match=r"give a name that ends with \.tar"):
        backup_index(index, tmp_path / "b.zip")
    (read_index(index).files / "vectors.npy").write_bytes(b"damaged")
    with pytest.raises(IndexCorrupt, match=r"shelf/gen-000002/vectors\.npy has 7 bytes"):
        backup_index(index, tmp_path / "b.tar")
    assert not (tmp_path / "b.tar").exists()
    assert not list(index.glob(".snapshot-*"))


def test_an_index_of_a_newer_version_is_not_backed_up(index: Path, tmp_path: Path) -> None:
    manifest = read_index(index).files / "manifest.json"
    content = manifest.read_bytes().replace(b'"format": 3', b'"format": 4')
    manifest.write_bytes(content)
    (index / "CURRENT").write_text(f"{manifest.parent.name} {hashlib.sha256(content).hexdigest()}\n")
    with pytest.raises(IndexMismatch, match=r"shelf has format 4; .* newer version"):
        backup_index(index, tmp_path / "b.tar")


def test_the_commands_back_up_and_restore(index: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    made = runner.invoke(app, ["backup", str(index), str(tmp_path / "b.tar.gz")])
    assert made.exit_code == 0, made.output
    assert "4 passages, 1 uploaded files" in made.output
    restored = runner.invoke(app, ["restore", str(tmp_path / "b.tar.gz"), str(tmp_path / "copy")])
    assert restored.exit_code == 0, restored.output
    assert sources(tmp_path / "copy") == sources(index)
    again = runner.invoke(app, ["restore", str(tmp_path / "b.tar.gz"), str(tmp_path / "copy")])
    assert again.exit_code == 2
    assert "--force" in again.output
