"""File discovery: links, names and folders that cannot be used are skipped with a reason."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from antiphon.retrieval import (
    HashEmbedder,
    Passage,
    SkippedFile,
    build_index,
    index_passages,
    load_documents,
    read_index,
)
from antiphon.retrieval.vector_index.flat import Vectors

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links and names of POSIX")
OUTSIDE = "it is a link to a {} outside of what is indexed; to read it, follow links or name it"


class Unused(HashEmbedder):
    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        raise AssertionError("nothing is to be embedded")


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "good.txt").write_text("good")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text("secret")
    return tmp_path / "docs"


def reasons(docs: Path) -> dict[str, str]:
    return {os.path.relpath(skipped.path, docs): skipped.reason for skipped in load_documents([docs]).skipped}


def test_links_that_lead_to_themselves_are_skipped(docs: Path) -> None:
    (docs / "self.txt").symlink_to(docs / "self.txt")
    (docs / "one.txt").symlink_to(docs / "two.txt")
    (docs / "two.txt").symlink_to(docs / "one.txt")
    assert reasons(docs) == dict.fromkeys(["self.txt", "one.txt", "two.txt"], "Too many levels of symbolic links")
    with pytest.raises(ValueError, match=r"1 skipped, the first is .*self\.txt: Too many levels of symbolic links"):
        load_documents([docs / "self.txt"])


def test_links_that_lead_out_are_followed_on_request(docs: Path) -> None:
    outside = docs.parent / "outside"
    (docs / "file.txt").symlink_to(outside / "secret.txt")
    (docs / "folder").symlink_to(outside)
    (docs / "inside.txt").symlink_to(docs / "good.txt")
    loaded = load_documents([docs])
    assert [document.text for document in loaded.documents] == ["good"]
    assert reasons(docs) == {"file.txt": OUTSIDE.format("file"), "folder": OUTSIDE.format("folder")}
    followed = load_documents([docs], follow_links=True)
    assert sorted(document.text for document in followed.documents) == ["good", "secret"]
    assert followed.skipped == ()


def test_a_link_is_followed_if_it_or_its_target_is_named(docs: Path) -> None:
    (docs / "file.txt").symlink_to(docs.parent / "outside" / "secret.txt")
    assert [document.text for document in load_documents([docs / "file.txt"]).documents] == ["secret"]
    both = load_documents([docs, docs.parent / "outside"])
    assert (sorted(document.text for document in both.documents), both.skipped) == (["good", "secret"], ())


def test_following_links_between_folders_terminates(docs: Path) -> None:
    (docs / "loop").symlink_to(docs)
    (docs / "deep").mkdir()
    (docs / "deep" / "up").symlink_to(docs.parent)
    followed = load_documents([docs], follow_links=True)
    assert sorted(document.text for document in followed.documents) == ["good", "secret"]


def test_a_name_that_is_not_utf_8_is_skipped_before_anything_is_embedded(docs: Path) -> None:
    path = docs / os.fsdecode(b"caf\xe9.txt")
    try:
        path.write_text("coffee")
    except OSError:
        pytest.skip("this file system has no such names")
    report = build_index([docs], docs.parent / "index", embedder="hash")
    assert report.skipped == (SkippedFile(str(path), "its name is not UTF-8; rename it"),)
    assert [passage.text for passage in read_index(docs.parent / "index").passages] == ["good"]
    with pytest.raises(ValueError, match="its name is not UTF-8"):
        load_documents([str(path)])


@pytest.mark.parametrize("field", ["text", "id", "source", "metadata"])
def test_passages_that_utf_8_cannot_encode_are_refused_before_embedding(tmp_path: Path, field: str) -> None:
    values = {"text": "a", "id": "b", "source": "c", "start": 0, "end": 1}
    values |= {"metadata": {"title": "\udc80"}} if field == "metadata" else {field: "x\udc80"}
    with pytest.raises(ValueError, match=rf"holds half a character \(a lone surrogate\) in its {field}"):
        index_passages([Passage(**values)], tmp_path / "index", Unused())  # type: ignore[arg-type]
    assert not (tmp_path / "index").exists()
