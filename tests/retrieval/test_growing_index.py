"""Growing an index: which documents stay, which would be dropped, which files have changed."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from antiphon.retrieval import (
    HashEmbedder,
    IndexCorrupt,
    IndexNotFound,
    IndexReport,
    LocalIndex,
    Passage,
    Retriever,
    WouldDropDocuments,
    build_index,
    index_passages,
    read_index,
    refresh_index,
    remove_documents,
    update_index,
    watch_index,
)
from antiphon.retrieval.document_changes import is_below
from antiphon.retrieval.source_file import file_change

pytestmark = pytest.mark.slow

EMBEDDER = HashEmbedder()


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("a/one.txt", "a/two.txt", "b/three.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"The text of {path.stem}.")
    return tmp_path


def build(*paths: str, add: bool = False, asked: list[Sequence[str]] | None = None, answer: bool = False) -> None:
    def confirm(dropped: Sequence[str]) -> bool:
        if asked is not None:
            asked.append(dropped)
        return answer

    build_index(paths, "index", embedder=EMBEDDER, add=add, confirm=confirm)


def sources(folder: str = "index") -> list[str]:
    return list(read_index(folder).passages.sources())


def upload(name: str = "notes.txt") -> None:
    update_index("index", EMBEDDER, upsert=[Passage.at(f"uploaded/{name}", 0, "An uploaded text.")])


def test_a_run_that_would_drop_documents_asks_and_changes_nothing_if_it_is_declined(docs: Path) -> None:
    build("a")
    asked: list[Sequence[str]] = []
    with pytest.raises(WouldDropDocuments, match=r"would drop 2 of the 2 documents in index: a/one\.txt, a/two\.txt\."):
        build("b", asked=asked)
    assert asked == [["a/one.txt", "a/two.txt"]]
    assert sources() == ["a/one.txt", "a/two.txt"]
    build("b", answer=True)
    assert sources() == ["b/three.txt"]


def test_a_run_over_the_same_files_does_not_ask(docs: Path) -> None:
    build("a", "b")
    (docs / "a/one.txt").write_text("Another text.")
    (docs / "a/four.txt").write_text("A new text.")
    build("a", "b")
    build(str(docs / "a"), str(docs / "b"))
    assert [Path(source).name for source in sources()] == ["four.txt", "one.txt", "two.txt", "three.txt"]


def test_added_documents_join_those_of_the_index(docs: Path) -> None:
    build("a")
    build("b", add=True)
    assert sources() == ["a/one.txt", "a/two.txt", "b/three.txt"]
    (docs / "b/three.txt").write_text("A changed text.")
    report = build_index(["b"], "index", add=True)
    assert (report.files, report.kept, report.dropped, report.embedder) == (1, 2, (), EMBEDDER.name)
    assert [p.text for p in read_index("index").passages if p.source == "b/three.txt"] == ["A changed text."]


def test_adding_a_folder_again_drops_its_deleted_files_only_if_that_is_confirmed(docs: Path) -> None:
    build("a", "b")
    (docs / "a/one.txt").unlink()
    with pytest.raises(WouldDropDocuments, match=r"would drop 1 of the 3 documents in index: a/one\.txt\."):
        build("a", add=True)
    build("a", add=True, answer=True)
    assert sources() == ["a/two.txt", "b/three.txt"]


def test_a_folder_named_in_another_way_is_the_same_folder(docs: Path) -> None:
    build("a")
    build(str(docs / "a"), add=True)
    assert sources() == [f"{docs}/a/one.txt", f"{docs}/a/two.txt"]


def test_documents_are_not_added_to_a_damaged_index(docs: Path) -> None:
    build("a")
    pointer = docs / "index" / "CURRENT"
    pointer.write_text("gen-000001 damaged\n")
    with pytest.raises(IndexCorrupt):
        build("b", add=True)
    assert pointer.read_text() == "gen-000001 damaged\n"
    build("b")
    assert sources() == ["b/three.txt"]


def test_uploaded_documents_survive_every_run(docs: Path) -> None:
    build("a")
    upload()
    build("a")
    build("b", answer=True)
    build("a", add=True)
    build_index(["b"], "index", embedder=HashEmbedder(64))
    assert sources() == ["b/three.txt", "uploaded/notes.txt"]
    found = Retriever.open("index", embedder=HashEmbedder(64)).search("uploaded", 1)
    assert found[0].text == "An uploaded text."


def test_removed_documents_are_named_by_file_folder_or_upload(docs: Path) -> None:
    build("a", "b")
    upload()
    assert remove_documents("index", ["a/one.txt"], embedder=EMBEDDER) == ("a/one.txt",)
    assert remove_documents("index", [docs / "b"], embedder=EMBEDDER) == ("b/three.txt",)
    assert remove_documents("index", ["uploaded/notes.txt"], embedder=EMBEDDER) == ("uploaded/notes.txt",)
    assert sources() == ["a/two.txt"]


def test_an_unknown_document_is_not_removed_and_neither_are_the_others(docs: Path) -> None:
    build("a")
    with pytest.raises(ValueError, match=r"has no document 'c'; it has a/one\.txt, a/two\.txt\."):
        remove_documents("index", ["a/one.txt", "c"], embedder=EMBEDDER)
    assert sources() == ["a/one.txt", "a/two.txt"]
    with pytest.raises(IndexNotFound):
        remove_documents("elsewhere", ["a"], embedder=EMBEDDER)


def opened() -> LocalIndex:
    index = Retriever.open("index", embedder=EMBEDDER).index
    assert isinstance(index, LocalIndex)
    return index


def test_an_open_index_follows_a_new_one(docs: Path) -> None:
    build("a")
    retriever = Retriever.open("index", embedder=EMBEDDER, reranker=None)
    build("b", add=True)
    assert retriever.search("text of three", 1)[0].source == "b/three.txt"
    remove_documents("index", ["b"], embedder=EMBEDDER)
    assert {passage.source for passage in retriever.search("text of three", 9)} == {"a/one.txt", "a/two.txt"}
    assert isinstance(retriever.index, LocalIndex)
    assert (len(retriever.index), retriever.index.stale) == (2, "")


def test_an_open_index_says_that_it_is_stale_if_the_new_one_has_another_embedder(
    docs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    build("a")
    index = opened()
    build_index(["b"], "index", embedder=HashEmbedder(64))
    assert list(index.sources()) == ["a/one.txt", "a/two.txt"]
    assert "was made with the embedder" in index.stale
    assert [record.levelname for record in caplog.records] == ["WARNING"], "it is logged once"
    build("a", "b", answer=True)
    assert (index.stale, len(index)) == ("", 3)


def test_changes_through_an_open_index_keep_what_another_process_added(docs: Path) -> None:
    build("a")
    index = opened()
    build("b", add=True)
    index.upsert([Passage.at("c", 0, "Text.")], EMBEDDER.embed_documents(["Text."]))
    assert list(index.sources()) == ["a/one.txt", "a/two.txt", "b/three.txt", "c"]


def test_threads_search_while_the_index_is_replaced(docs: Path) -> None:
    build("a")
    retriever = Retriever.open("index", embedder=EMBEDDER, reranker=None)
    stop, found = threading.Event(), []

    def search() -> None:
        while not stop.is_set():
            found.append(len(retriever.search("text", 9)))

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(6):
        (docs / f"b/more{number}.txt").write_text(f"More text, {number}.")
        build("b", add=True)
    stop.set()
    for thread in threads:
        thread.join()
    assert set(found) <= set(range(2, 10))
    assert len(retriever.search("text", 20)) == 9


def test_watching_indexes_changed_new_and_deleted_files(docs: Path) -> None:
    pytest.importorskip("watchfiles")
    build("a", "b")
    stop = threading.Event()
    reports = watch_index(["a"], "index", stop=stop)
    index = opened()
    one, new = docs / "a/one.txt", docs / "a/new.csv"
    for change, expected in (
        (lambda: one.write_text("A changed text."), ["a/one.txt", "a/two.txt", "b/three.txt"]),
        (lambda: new.write_text("x,y\n1,2\n"), ["a/new.csv", "a/one.txt", "a/two.txt", "b/three.txt"]),
        (one.unlink, ["a/new.csv", "a/two.txt", "b/three.txt"]),
    ):
        before = index.keyword_search("changed", 1)
        threading.Timer(1, change).start()  # the watcher starts meanwhile
        next(reports)
        assert list(index.sources()) == expected
        assert index.keyword_search("changed", 1) != before or new.exists()
    stop.set()
    assert next(reports, None) is None


def test_a_folder_whose_name_begins_like_another_one_is_not_below_it() -> None:
    places = [os.path.realpath("notes"), os.path.realpath("one.md")]
    assert is_below("notes/a.md", places)
    assert is_below("one.md", places)
    assert not is_below("notes-2024/a.md", places)
    assert not is_below("one.md.txt", places)


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
