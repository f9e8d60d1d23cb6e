"""A model's first start on OpenVINO where something goes wrong: a sentence or a second try, and never a wrong model.

Each start is a process of its own over one cache, from `LanguageModel.from_pretrained` down; see `starting`.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from antiphon.accel import LanguageModel
from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install 'antiphon[openvino]'")

from antiphon.accel.engines.openvino.store import GRAPH, RECEIPT, WEIGHTS

ROOT = Path(__file__).parents[3]
ROOMS = ("accel", "retrieval", "pipelines", "integrations")
PROMPT = "Honey keeps for years because it holds little water."
REQUEST: dict[str, Any] = {"prompt": PROMPT, "references": [PROMPT], "max_new_tokens": 24}
SMALL = 200_000
"""Bytes: less than the weights of the tiny model, more than its graph."""

PRIVATE = ("unshare", "--map-root-user", "--mount")
"""Runs a command with mounts of its own."""

FULL = f'mount -t tmpfs -o size={SMALL} tmpfs "$XDG_CACHE_HOME"'
READ_ONLY = 'mount --bind "$XDG_CACHE_HOME" "$XDG_CACHE_HOME" && mount -o remount,ro,bind "$XDG_CACHE_HOME"'


class Begun:
    """A start that goes on: a process at the other end of a connection."""

    def __init__(self, connection: socket.socket, error: Path) -> None:
        self.lines, self.error = connection.makefile("rw"), error

    def tell(self, line: str) -> None:
        """Have it read a line."""
        self.lines.write(line)
        self.lines.flush()

    def end(self) -> tuple[int, str, str]:
        """How it ended: its code, and what it wrote."""
        *out, code = self.lines.readlines()
        self.lines.close()
        return int(code), "".join(out), self.error.read_text()


class Starts:
    """Starts one model again and again, in processes that share a cache."""

    def __init__(self, folder: Path, starter: subprocess.Popen[str]) -> None:
        self.model, self.cache, self.elsewhere = folder / "model", folder / "cache", folder / "elsewhere"
        for each in (self.cache, self.elsewhere):
            each.mkdir()
        self.errors = (folder / f"error-{number}" for number in count())
        self.starter = starter

    @property
    def kept(self) -> Path:
        """Where converted models are kept."""
        return self.cache / "antiphon" / "openvino"

    def begin(self, **options: Any) -> Begun:
        """One more start, with what else is said of a `Start`."""
        environment = {"XDG_CACHE_HOME": str(self.cache), "TMPDIR": str(self.elsewhere)}
        error = next(self.errors)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(60)
            said = {"port": listener.getsockname()[1], "error": str(error), "environment": environment}
            said |= {"folder": str(self.model), "request": REQUEST}
            print(json.dumps(said | options), file=self.starter.stdin, flush=True)
            with listener.accept()[0] as connection:
                return Begun(connection, error)

    def run(self, **options: Any) -> tuple[int, str, str]:
        """How a start ended: its code, and what it wrote."""
        return self.begin(**options).end()

    def expect_right(self, truth: Sequence[int], *, stages: Sequence[int], mount: str = "") -> None:
        """A start ends well, after these stages of the preparation."""
        code, out, err = self.run(mount=mount)
        assert code == 0, err
        *told, text = out.splitlines()
        assert json.loads(text) == truth
        assert told == [f"stage {stage}" for stage in stages]

    def expect_nothing_left(self) -> None:
        """Of models there is one that is whole, or none; and nothing that nobody knows of."""
        folders = [each for each in self.kept.iterdir() if each.is_dir()] if self.kept.is_dir() else []
        assert len(folders) <= 1
        for folder in folders:
            assert sorted(each.name for each in folder.iterdir()) == [WEIGHTS, GRAPH, RECEIPT]
        assert list(self.elsewhere.glob("antiphon-*")) == []


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    tiny_model().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def truth(saved: Path) -> list[int]:
    """What torch says, decoding plainly."""
    model = LanguageModel.from_pretrained(saved, engine="torch", drafter="nothing")
    return list(model.generate(**REQUEST).tokens)


@pytest.fixture(scope="module")
def may_mount(tmp_path_factory: pytest.TempPathFactory) -> bool:
    """Whether one may mount anything here."""
    tried = [*PRIVATE, "mount", "-t", "tmpfs", "tmpfs", str(tmp_path_factory.mktemp("mounted"))]
    return shutil.which(PRIVATE[0]) is not None and subprocess.run(tried, capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def starter(may_mount: bool) -> Iterator[subprocess.Popen[str]]:
    """The process that all starts are forked off; what they mount nobody else sees."""
    command = [*(PRIVATE if may_mount else ()), sys.executable, "-W", "ignore", "-m", f"{__package__}.start_process"]
    paths = os.pathsep.join([*(str(ROOT / room) for room in ROOMS), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as process:
        yield process


@pytest.fixture
def starts(tmp_path: Path, saved: Path, starter: subprocess.Popen[str]) -> Starts:
    shutil.copytree(saved, tmp_path / "model")
    return Starts(tmp_path, starter)


@pytest.fixture
def _mounts(may_mount: bool) -> None:
    """Skips where nobody may mount anything."""
    if not may_mount:
        pytest.skip("nobody may mount anything here")


@pytest.mark.parametrize(
    "moment",
    [
        r"^stage 0",
        r"^tempfile.mkdtemp .*/\.unfinished-",
        r"^open .*/\.unfinished-\w+/graph\.xml",
        r"^open .*/\.unfinished-\w+/receipt\.json",
        r"^os.rename .*/\.unfinished-",
        r"^stage 1",
    ],
)
def test_a_start_that_is_killed_is_made_up_for_by_the_next(starts: Starts, truth: list[int], moment: str) -> None:
    code, out, err = starts.run(dies_at=moment)
    assert code == -signal.SIGKILL, err
    assert "[" not in out
    was_kept = moment == r"^stage 1"  # what it lacks there is the verdict alone
    starts.expect_right(truth, stages=(1, 2) if was_kept else (0, 1, 2))


def test_two_processes_that_convert_at_once_both_end_with_the_right_model(starts: Starts, truth: list[int]) -> None:
    both = [starts.begin(waits=True) for _ in range(2)]
    for process in both:
        assert process.lines.readline() == "stage 0\n"
    for process in both:
        process.tell("go on\n")
    for process in both:
        code, out, err = process.end()
        assert code == 0, err
        assert json.loads(out.splitlines()[-1]) == truth
    starts.expect_nothing_left()
    starts.expect_right(truth, stages=())


def test_where_no_file_finds_room_it_is_said_and_not_remembered(starts: Starts, truth: list[int]) -> None:
    code, _, err = starts.run(largest=SMALL)
    assert code == 1
    assert "engine is 'openvino', which cannot run this LlamaForCausalLM" in err
    assert "is the disk full?" in err
    assert "Traceback" not in err
    starts.expect_nothing_left()
    starts.expect_right(truth, stages=(0, 1, 2))


@pytest.mark.usefixtures("_mounts")
def test_a_cache_on_a_full_disk_is_done_without(starts: Starts, truth: list[int]) -> None:
    starts.expect_right(truth, mount=FULL, stages=(0, 1, 2))
    starts.expect_nothing_left()


@pytest.mark.usefixtures("_mounts")
def test_a_cache_that_cannot_be_written_is_done_without(starts: Starts, truth: list[int]) -> None:
    starts.expect_right(truth, mount=READ_ONLY, stages=(0, 1, 2))
    starts.expect_nothing_left()


@pytest.mark.usefixtures("_mounts")
def test_a_cache_that_cannot_be_written_is_read_where_it_is_whole_and_only_there(
    starts: Starts, truth: list[int]
) -> None:
    starts.expect_right(truth, stages=(0, 1, 2))
    starts.expect_right(truth, mount=READ_ONLY, stages=())
    [folder] = [each for each in starts.kept.iterdir() if each.is_dir()]
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: len(content) // 2])
    starts.expect_right(truth, mount=READ_ONLY, stages=(0, 1, 2))
    assert (folder / WEIGHTS).stat().st_size == len(content) // 2
