"""File discovery: links, names and folders that cannot be used are skipped with a reason."""

import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
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
from tests.retrieval.test_load import pdf

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


def test_a_page_in_an_encoding_of_python_alone_gives_no_lone_surrogates(docs: Path) -> None:
    (docs / "half.html").write_bytes(b'<meta charset="unicode_escape"><p>\\ud800 Gr\xfc\xdfe &#xd800;</p>')
    assert [document.text for document in load_documents([docs]).documents] == ["good", "\\ud800 Grüße \ufffd"]


LISTING = """
import sys
from antiphon.retrieval import load_documents
loaded = load_documents([sys.argv[1]])
print([document.text for document in loaded.documents], [(s.path, s.reason) for s in loaded.skipped])
"""


@pytest.fixture
def closed() -> Iterator[Path]:
    """A folder that cannot be listed, inside a folder that every user can enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "good.txt").write_text("good")
        (Path(folder) / "closed").mkdir(mode=0)
        yield Path(folder) / "closed"
        (Path(folder) / "closed").chmod(0o755)


def told_nobody(folder: Path, closed: Path) -> str:
    """Return the error that an unprivileged user gets, because root can list every folder."""
    read = "import sys, os, antiphon.retrieval.load as load\nload.load_documents([os.path.dirname(sys.argv[2])])\n"
    drop = read + "if not os.geteuid(): os.setgid(65534); os.setuid(65534)\n"  # it has imported all that it needs
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", drop + LISTING, str(folder), str(closed)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return run.stdout or run.stderr


def test_a_folder_that_cannot_be_listed_is_skipped_and_named(closed: Path) -> None:
    reason = "it cannot be listed: Permission denied"
    assert told_nobody(closed.parent, closed) == f"['good'] {[(str(closed), reason)]}\n"
    assert f"1 skipped, the first is {closed}: {reason}" in told_nobody(closed, closed)


def test_a_pdf_with_a_wrong_offset_is_repaired_without_messages(docs: Path, caplog: pytest.LogCaptureFixture) -> None:
    (docs / "odd.pdf").write_bytes(pdf("text").replace(b"startxref\n", b"startxref\n1"))
    with caplog.at_level(logging.WARNING):
        assert [document.text for document in load_documents([docs]).documents] == ["good", "text"]
    assert caplog.records == []
