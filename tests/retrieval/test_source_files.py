"""The files of an index: which have changed, which are the same, and how an index is brought up to date."""

import os
from pathlib import Path

import pytest

from antiphon.retrieval import (
    HashEmbedder,
    IndexReport,
    Passage,
    Retriever,
    build_index,
    index_passages,
    read_index,
    refresh_index,
    remove_documents,
    update_index,
)
from antiphon.retrieval.source_file import file_change

EMBEDDER = HashEmbedder()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index of two projects, each of which was indexed as `docs` from its own folder."""
    for name in ("one/docs/a.txt", "one/docs/b.txt", "two/docs/a.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"The text of {name}.")
    for project in ("one", "two"):
        monkeypatch.chdir(tmp_path / project)
        build_index(["docs"], tmp_path / "index", embedder=EMBEDDER, add=True)
    monkeypatch.chdir("/")
    return tmp_path / "index"


def refreshed(index: Path) -> IndexReport:
    return refresh_index(index, embedder=EMBEDDER)


def texts(index: Path) -> dict[str, str]:
    return {passage.source: passage.text for passage in read_index(index).passages}


def changes(index: Path) -> dict[str, str]:
    return {
        passage.source: change for passage in read_index(index).passages if (change := file_change(passage.metadata))
    }


def test_documents_are_the_same_if_their_files_are(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = index.parent
    own = f"{root}/two/docs/a.txt"
    assert [*texts(index)] == ["docs/a.txt", "docs/b.txt", own], "equal relative paths, two files"
    (root / "link").symlink_to(root / "one/docs")
    monkeypatch.chdir(root)
    build_index(["link", "two/docs"], index, embedder=EMBEDDER, add=True)
    assert [*texts(index)] == ["link/a.txt", "link/b.txt", "two/docs/a.txt"], "other paths, the same files"


def test_an_index_knows_which_files_have_changed_and_is_brought_up_to_date(index: Path) -> None:
    one, other = index.parent / "one/docs/a.txt", index.parent / "one/docs/b.txt"
    os.utime(one, (1, 1))
    assert not changes(index), "the content is the same"
    assert refreshed(index).files == 0
    one.write_text("The TEXT of one/docs/a.txt.")  # of the same size
    other.rename(other.with_name("c.txt"))
    assert changes(index) == {"docs/a.txt": "changed", "docs/b.txt": "deleted"}
    report = refreshed(index)
    assert (report.files, report.kept, report.reused, report.dropped) == (2, 1, 1, ("docs/b.txt",))
    assert texts(index) == {
        f"{index.parent}/two/docs/a.txt": "The text of two/docs/a.txt.",
        "docs/a.txt": "The TEXT of one/docs/a.txt.",
        "docs/c.txt": "The text of one/docs/b.txt.",
    }
    assert not changes(index)


def test_without_its_documents_an_index_says_nothing_and_uploads_have_no_file(index: Path) -> None:
    update_index(index, EMBEDDER, upsert=[Passage.at("uploaded/x.txt", 0, "An uploaded text.")])
    for folder in ("one", "two"):
        (index.parent / folder).rename(index.parent / f"{folder}-gone")
    assert not changes(index), "as on a server that has the index only"
    index_passages([Passage.at("x", 0, "A text.")], index.parent / "new", EMBEDDER)
    with pytest.raises(ValueError, match="does not name its files; index their paths again"):
        refreshed(index.parent / "new")


def test_linked_files_stay_and_names_are_compared_in_one_form(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "out.txt").write_text("A linked text.")
    (tmp_path / "docs/link.txt").symlink_to(tmp_path / "out.txt")
    (tmp_path / "docs/cafe\u0301.txt").write_text("A text.")
    build_index([tmp_path / "docs"], tmp_path / "index", embedder=EMBEDDER, follow_links=True)
    assert texts(tmp_path / "index").keys() == {f"{tmp_path}/docs/caf\xe9.txt", f"{tmp_path}/docs/link.txt"}
    (tmp_path / "out.txt").write_text("Another text.")
    assert refreshed(tmp_path / "index").files == 1
    assert texts(tmp_path / "index")[f"{tmp_path}/docs/link.txt"] == "Another text."
    found = Retriever.open(tmp_path / "index", embedder=EMBEDDER, reranker=None).search(
        "text", where={"source": f"{tmp_path}/docs/cafe\u0301.txt"}
    )
    assert len(found) == 1
    assert len(remove_documents(tmp_path / "index", [tmp_path / "docs/cafe\u0301.txt"], embedder=EMBEDDER)) == 1
