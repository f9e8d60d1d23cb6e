"""The commands as a new user types them: in a folder of documents and without options, each in a new process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.timeout(600)]

PAGE = """Settings
========

Reading files
-------------

The program reads its settings from a file.

Disable dotenv
--------------

Set the environment variable :envvar:`KELPIE_SKIP_DOTENV` to 1 to disable reading of :file:`.env` files.
"""
QUESTION = "How do I disable reading of .env files?"


def antiphon(folder: Path, *arguments: str, spoken: str = "") -> tuple[subprocess.CompletedProcess[str], float]:
    """Run a command in a folder; return its output and the seconds that it took."""
    script = "from antiphon.pipelines.cli import app; app()"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200"}
    began = time.perf_counter()
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(
        command, env=environment, cwd=folder, input=spoken, capture_output=True, text=True, check=False
    )
    return done, time.perf_counter() - began


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, reader_folder: Path) -> Path:
    """A folder of documents with an index at the default place."""
    folder = tmp_path_factory.mktemp("first-use")
    (folder / "docs").mkdir()
    (folder / "docs" / "cli.rst").write_text(PAGE)
    done, _ = antiphon(folder, "index", "docs", "--embedder", "minilm")
    assert done.returncode == 0, done.stderr
    assert "Indexing into .antiphon …" in done.stderr
    return folder


def test_an_answer_without_options(folder: Path) -> None:
    done, wall = antiphon(folder, "ask", QUESTION)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(
        "[1] Set the environment variable KELPIE_SKIP_DOTENV to 1 to disable reading of .env files."
    )
    assert any(line.startswith(f"  [1] {Path('docs') / 'cli.rst'}, Disable dotenv: “Set the") for line in lines)
    found = re.search(r"; first output after (\d+\.\d) s, (\d+\.\d) s in all$", lines[-1])
    assert found is not None, lines[-1]
    first, total = map(float, found.groups())
    assert first <= total <= wall + 0.1
    assert wall - total < max(3.0, wall / 4), "the end of the process is not counted"
    assert done.stderr.splitlines()[0] == "Opening .antiphon …"
    assert not re.search("Loading weights|Retry|Warning", done.stderr), done.stderr


def test_a_conversation_from_a_folder_below_ends_with_quit(folder: Path) -> None:
    spoken = "Who wrote Hamlet?\n" + QUESTION + "\nquit\nIs this read?\n"
    done, _ = antiphon(folder / "docs", "chat", spoken=spoken)
    assert done.returncode == 0, done.stderr
    refusal, answer = done.stdout.split("> ")[1:3]
    assert refusal.startswith("The passages do not say.")
    assert answer.startswith("[1] Set the environment variable KELPIE_SKIP_DOTENV")
    assert "Is this read?" not in done.stdout
