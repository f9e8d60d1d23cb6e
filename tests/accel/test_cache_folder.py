"""The cache folder without a home that can be written."""

import os
import subprocess
import sys
from pathlib import Path

SHOW = "from antiphon.accel.cache_folder import cache_folder; print(cache_folder(), cache_folder().is_dir())"
UNKNOWN_USER = "import sys; sys.modules['pwd'] = None; "  # without the list of users, nobody is known


def shown(tmp_path: Path, program: str = SHOW, **environment: str) -> tuple[list[str], str]:
    """Return the folder of a process with this environment only, whether it exists, and its standard error."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    tmp_path.joinpath("tmp").mkdir(exist_ok=True)
    command = [sys.executable, "-c", program]
    own = kept | {"TMPDIR": str(tmp_path / "tmp")} | environment
    done = subprocess.run(command, env=own, cwd=tmp_path, capture_output=True, text=True, check=True)
    return done.stdout.split(), done.stderr


def test_a_home_that_cannot_be_written_is_named_once_with_the_variable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    [folder, exists], said = shown(tmp_path, HOME=str(tmp_path / "file"))
    assert (Path(folder).parent, exists) == (tmp_path / "tmp", "True")
    assert said.count("set XDG_CACHE_HOME") == 1


def test_an_unknown_user_without_a_home_gets_no_folder_named_by_a_tilde(tmp_path: Path) -> None:
    [folder, exists], said = shown(tmp_path, UNKNOWN_USER + SHOW)
    assert (Path(folder).parent, exists) == (tmp_path / "tmp", "True")
    assert "~/.cache/antiphon cannot be written" in said
    settings = "from antiphon.pipelines.cli.config import read_settings; print(read_settings())"
    assert shown(tmp_path, UNKNOWN_USER + settings)[0] == ["{}"]
    assert [each.name for each in tmp_path.iterdir()] == ["tmp"]


def test_a_usual_home_is_used_without_a_word(tmp_path: Path) -> None:
    [folder, exists], said = shown(tmp_path, HOME=str(tmp_path))
    assert (folder, exists, said) == (str(tmp_path / ".cache" / "antiphon"), "True", "")
