"""The command index: what it prints, where indexes are found, and changes of an existing one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from antiphon.pipelines.citations import cite
from antiphon.pipelines.cli import app
from antiphon.pipelines.cli.index_location import DEFAULT_INDEX, find_index, nearest_index
from antiphon.pipelines.rendering.html import answer_html
from antiphon.pipelines.rendering.segments import outdated_note
from antiphon.pipelines.rendering.terminal import citation_lines
from antiphon.pipelines.server.response_fields import annotation_object
from antiphon.retrieval import Retriever

pytestmark = pytest.mark.slow

posix = pytest.mark.skipif(sys.platform == "win32", reason="names of POSIX")


@posix
def test_names_steer_no_terminal_and_begin_no_line(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "good.txt").write_text("good")
    (tmp_path / "docs" / "bad\x1b[2J\x9b\nantiphon: all is well.png").write_bytes(b"x")
    arguments = ["index", str(tmp_path / "docs"), "--out", str(tmp_path / "index"), "--embedder", "hash"]
    told = CliRunner().invoke(app, arguments)
    assert told.exit_code == 0
    assert "bad␛[2J" in told.stderr
    assert "\x1b" not in told.stderr
    assert "\x9b" not in told.stderr
    assert not any(line.startswith("antiphon: all is well") for line in told.stderr.splitlines())
    refused = CliRunner().invoke(app, ["index", str(tmp_path / "gone\x1b[2J"), "--out", str(tmp_path / "other")])
    assert refused.exit_code == 2
    assert "gone␛[2J does not exist" in refused.stderr


REDIRECTED = """
import time
from antiphon.pipelines.cli import console
with console.progress_bars({"embed": "Embedding"}, every=0.05) as report:
    report("embed", 1, 7)
    time.sleep(1)
"""


def test_what_goes_to_a_file_is_lines(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+") as log:
        subprocess.run([sys.executable, "-c", REDIRECTED], stderr=log, check=True)
        log.seek(0)
        told = log.read()
    assert told.count("Embedding: 1 of 7, ") == len(told.splitlines()) >= 3, "neither bars nor escapes"


HEAVY = ("torch", "transformers", "openvino")


def make_index(folder: Path) -> Path:
    """Make a folder with the only file of an index that is examined before it is opened."""
    folder.mkdir(parents=True)
    (folder / "CURRENT").write_text(f"gen-000001 {'0' * 64}\n")
    return folder


def test_the_default_index_is_found_here_and_in_folders_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_index(tmp_path / "project" / DEFAULT_INDEX)
    below = tmp_path / "project" / "docs" / "guide"
    below.mkdir(parents=True)
    for folder in (tmp_path / "project", below):
        monkeypatch.chdir(folder)
        assert Path(find_index(None)).resolve() == made.resolve()


def test_documents_are_indexed_into_the_default_folder_which_is_not_indexed_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bees.txt").write_text("Bees live in colonies. Each colony has one queen.")
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        done = CliRunner().invoke(app, ["index", ".", "--embedder", "hash"])
        assert done.exit_code == 0, done.stderr
        assert "1 file, 1 passage" in done.stderr
    assert nearest_index() == DEFAULT_INDEX
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "ants.txt").write_text("Ants live in nests.")
    monkeypatch.chdir(tmp_path / "docs")
    added = CliRunner().invoke(app, ["index", "ants.txt", "--add", "--embedder", "hash"])
    assert added.exit_code == 0, added.stderr
    assert not (tmp_path / "docs" / DEFAULT_INDEX).exists(), "it was added to the index above"
    assert "ants.txt" in CliRunner().invoke(app, ["index", "--list", str(tmp_path / DEFAULT_INDEX)]).stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("ask", "Who?"), "antiphon: There is no index in .antiphon here or in a folder above"),
        (("chat", "--rewrite"), "only quotes and cannot rewrite questions"),
        (("ask", "  ", "--index", "nowhere"), "antiphon: The question is empty"),
    ],
)
def test_a_mistyped_index_or_an_empty_question_is_refused_before_anything_is_loaded(
    arguments: tuple[str, ...], complaint: str, tmp_path: Path
) -> None:
    script = (
        "import sys; from antiphon.pipelines.cli import app\n"
        f"try: app({list(arguments)!r})\n"
        "except SystemExit as end: print(end.code)\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.stdout.split("\n")[:2] == ["2", "[]"], run.stderr
    assert complaint in " ".join(run.stderr.split())


@pytest.fixture
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


@pytest.mark.usefixtures("docs")
def test_a_script_that_would_drop_documents_fails_without_yes() -> None:
    told = run("b", "--out", "index", "--embedder", "hash", code=2).stderr
    assert "antiphon: This would drop 2 of the 2 documents in index: a/one.txt, a/two.txt." in told
    assert "add to the index (--add); to drop them, confirm (--yes)" in told
    assert listed() == ["a/one.txt", "a/two.txt"]
    assert "1 file, 1 passage, 2 documents dropped" in run("b", "--out", "index", "--embedder", "hash", "--yes").stderr
    assert listed() == ["b/three.txt"]


@pytest.mark.usefixtures("docs")
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
