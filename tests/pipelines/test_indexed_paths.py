"""Files and folders named in a question: indexed when they are new, and only what changed later."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from antiphon.pipelines.cli import app
from tests.tiny import save_model, tiny_model

HEAVY = ("torch", "transformers", "sentence_transformers")
SCRIPT = f"""
import sys
from antiphon.pipelines.cli import app
try:
    app(sys.argv[1:])
except SystemExit as done:
    print(done.code, [name for name in {HEAVY} if name in sys.modules])
"""


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "bees.txt").write_text("Bees live in colonies of up to sixty thousand.")
    (folder / "keys.md").write_text("Keys are rotated once a year.")
    return folder


def ask(question: str, *paths: Path) -> Result:
    return CliRunner().invoke(app, ["ask", question, *map(str, paths)])


@pytest.mark.slow
def test_a_question_indexes_what_is_new_or_has_changed(docs: Path) -> None:
    first = ask("How do bees live?", docs)
    assert (first.stdout.splitlines()[0], "2 files, 2 passages" in first.stderr) == (
        "[1] Bees live in colonies of up to sixty thousand.",
        True,
    )
    assert "passages, embedder" not in ask("How do bees live?", docs).stderr, "nothing has changed"
    (docs / "keys.md").write_text("Keys are rotated every Monday.")
    (docs / "bees.txt").unlink()
    changed = ask("How often are keys rotated?", docs)
    assert changed.stdout.splitlines()[0] == "[1] Keys are rotated every Monday."
    assert "1 file, 1 passage" in changed.stderr
    assert "sixty thousand" not in ask("How do bees live?", docs).stdout
    (docs / "broken.pdf").write_bytes(b"no PDF")
    assert "every Monday" in ask("How often are keys rotated?", docs).stdout, "what cannot be read costs nothing else"


def test_wrong_paths_are_refused(docs: Path) -> None:
    assert "does not exist" in ask("How?", docs / "none").stderr
    both = CliRunner().invoke(app, ["ask", "How?", str(docs), "--index", str(docs)])
    assert "name the files, or an index" in both.stderr


@pytest.mark.slow
def test_a_quoted_answer_needs_neither_torch_nor_transformers(docs: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, "ask", "How do bees live?", str(docs)]
    subprocess.run(command, check=True, capture_output=True)  # converts the encoders if no test has done so
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "0 []"


@pytest.mark.slow
def test_an_opened_language_model_needs_neither_torch_nor_transformers(docs: Path, tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install openvino")
    folder = tmp_path / "model"
    save_model(tiny_model(hidden_size=128, max_position_embeddings=4096), folder)
    options = ["--model", str(folder), "--engine", "openvino", "--max-new-tokens", "8", "--no-quote"]
    command = [sys.executable, "-c", SCRIPT, "ask", "How do bees live?", str(docs), *options]
    first = subprocess.run(command, check=True, capture_output=True, text=True)
    again = subprocess.run(command, check=True, capture_output=True, text=True)
    assert again.stdout.splitlines()[-1] == "0 []"
    assert again.stdout.splitlines()[0] == first.stdout.splitlines()[0], "the answer is the same"
