"""Output of `antiphon index`: file names are sanitized, and progress is printed on outputs that are no terminal."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from antiphon.pipelines.cli import app

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


def test_links_are_followed_when_the_option_says_so(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "good.txt").write_text("good")
    (tmp_path / "other.txt").write_text("other")
    (tmp_path / "docs" / "link.txt").symlink_to(tmp_path / "other.txt")
    arguments = ["index", str(tmp_path / "docs"), "--out", str(tmp_path / "index"), "--embedder", "hash"]
    assert "1 files, 1 passages" in CliRunner().invoke(app, arguments).stderr
    assert "2 files, 2 passages" in CliRunner().invoke(app, [*arguments, "--follow-links"]).stderr


REDIRECTED = """
import time
from antiphon.pipelines.cli import console
with console.progress_bars({"embed": "Embedding"}, every=0.05) as report:
    report("embed", 1, 7)
    time.sleep(1)
"""


def test_what_goes_to_a_file_is_lines(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with (tmp_path / "log").open("w+") as log:
        subprocess.run([sys.executable, "-c", REDIRECTED], stderr=log, check=True, env=environment)
        log.seek(0)
        told = log.read()
    assert told.count("Embedding: 1 of 7, ") >= 3
    assert "\x1b" not in told
