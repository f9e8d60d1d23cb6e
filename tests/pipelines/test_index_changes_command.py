"""`antiphon index` on an existing index: --add, --remove, --list, --yes, and what a run would drop."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from antiphon.pipelines.citations import cite
from antiphon.pipelines.cli import app
from antiphon.pipelines.rendering.html import answer_html
from antiphon.pipelines.rendering.segments import outdated_note
from antiphon.pipelines.rendering.terminal import citation_lines
from antiphon.pipelines.server.response_fields import annotation_object
from antiphon.retrieval import Retriever


@pytest.fixture(autouse=True)
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("a/one.txt", "a/two.txt", "b/three.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"The text of {path.stem}.")
    run("a", "--out", "index", "--embedder", "hash")
    return tmp_path


def run(*arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(app, ["index", *arguments])
    assert done.exit_code == code, done.stderr
    return done


def listed() -> list[str]:
    return [line.split()[-1] for line in run("--list", "index").stdout.splitlines()]


def test_a_script_that_would_drop_documents_fails_without_yes() -> None:
    told = run("b", "--out", "index", "--embedder", "hash", code=2).stderr
    assert "antiphon: This would drop 2 of the 2 documents in index: a/one.txt, a/two.txt." in told
    assert "add to the index (--add); to drop them, confirm (--yes)" in told
    assert listed() == ["a/one.txt", "a/two.txt"]
    assert "1 file, 1 passage, 2 documents dropped" in run("b", "--out", "index", "--embedder", "hash", "--yes").stderr
    assert listed() == ["b/three.txt"]


def test_documents_are_added_with_the_embedder_of_the_index_and_removed() -> None:
    assert (
        "1 file, 1 passage, 2 passages of other documents kept, embedder hash"
        in run("b", "--out", "index", "--add").stderr
    )
    assert listed() == ["a/one.txt", "a/two.txt", "b/three.txt"]
    assert "2 documents removed: index" in run("a", "--out", "index", "--remove").stderr
    assert listed() == ["b/three.txt"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
@pytest.mark.parametrize(("answer", "expected"), [("n", ["a/one.txt", "a/two.txt"]), ("y", ["b/three.txt"])])
def test_a_user_at_a_terminal_is_asked_before_documents_are_dropped(
    docs: Path, answer: str, expected: list[str]
) -> None:
    ours, theirs = os.openpty()
    os.write(ours, f"{answer}\n".encode())
    command = [sys.executable, "-m", "antiphon.pipelines.cli", "index", "b", "--out", "index", "--embedder", "hash"]
    process = subprocess.Popen(command, stdin=theirs, stderr=theirs, cwd=docs)
    assert process.wait(120) == (0 if answer == "y" else 2)
    shown = os.read(ours, 100_000).decode(errors="ignore")  # a read may end within a character
    assert "This would drop 2 of the 2 documents in index: a/one.txt, a/two.txt. Drop them? [y/N]" in shown
    assert listed() == expected


def test_answers_name_files_that_have_changed_and_index_without_paths_indexes_them(docs: Path) -> None:
    (docs / "a/one.txt").write_text("Another text of one.")
    (docs / "a/two.txt").unlink()
    passages = Retriever.open("index").search("The text of one and two", 2)
    citations = cite("The text of one. The text of two.", passages, words=4)
    note = "a/one.txt changed and a/two.txt was deleted since the index was made; bring it up to date: antiphon index"
    assert outdated_note(citations) == note
    assert citation_lines(citations)[-1].plain == note
    assert note in answer_html("?", "", citations, passages, "")
    assert {annotation_object(each, passages)["url_citation"]["outdated"] for each in citations} == {
        "changed",
        "deleted",
    }
    assert "1 file, 1 passage, 1 document dropped" in run("--out", "index").stderr
    assert listed() == ["a/one.txt"]
    assert "--remove, --watch and --ray need paths" in run("--out", "index", "--remove", code=2).stderr
