"""The command `antiphon index`: the place of the index, and the printed progress and names."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from antiphon.pipelines.cli import app
from antiphon.pipelines.cli.index_location import DEFAULT_INDEX, find_index, nearest_index

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
