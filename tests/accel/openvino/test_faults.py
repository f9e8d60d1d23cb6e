"""Faults while a model is loaded on OpenVINO for the first time: an error message or a retry, never a wrong model.

Each start is a new process that shares one cache and calls `LanguageModel.from_pretrained`; see `start_process`.
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

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install openvino")

from antiphon.accel.engines.openvino.store import GRAPH, WEIGHTS
from antiphon.accel.verified_folder import MANIFEST

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
PACKAGES = ("accel", "retrieval", "pipelines", "integrations")
PROMPT = "Honey keeps for years because it holds little water."
REQUEST: dict[str, Any] = {"prompt": PROMPT, "references": [PROMPT], "max_new_tokens": 24}
SMALL = 20_000
"""Bytes: less than the graph file of the tiny model."""

PRIVATE = ("unshare", "--map-root-user", "--mount")
"""Runs a command in a private mount namespace."""

FULL = f'mount -t tmpfs -o size={SMALL} tmpfs "$XDG_CACHE_HOME"'
READ_ONLY = 'mount --bind "$XDG_CACHE_HOME" "$XDG_CACHE_HOME" && mount -o remount,ro,bind "$XDG_CACHE_HOME"'


class RunningStart:
    """A process that is loading the model, and the connection to it."""

    def __init__(self, connection: socket.socket, error: Path) -> None:
        self.lines, self.error = connection.makefile("rw"), error

    def send(self, line: str) -> None:
        """Send a line to the process."""
        self.lines.write(line)
        self.lines.flush()

    def wait(self) -> tuple[int, str, str]:
        """Wait until the process ends; return its exit code, output and standard error."""
        *out, code = self.lines.readlines()
        self.lines.close()
        return int(code), "".join(out), self.error.read_text()


class Starts:
    """Loads one model repeatedly, in processes that share a cache."""

    def __init__(self, folder: Path, starter: subprocess.Popen[str]) -> None:
        self.model, self.cache, self.elsewhere = folder / "model", folder / "cache", folder / "elsewhere"
        for each in (self.cache, self.elsewhere):
            each.mkdir()
        self.errors = (folder / f"error-{number}" for number in count())
        self.starter = starter

    @property
    def stored(self) -> Path:
        """Folder of the converted models."""
        return self.cache / "antiphon" / "openvino"

    def begin(self, **options: Any) -> RunningStart:
        """Start loading the model in a new process; ``options`` are fields of `Start`."""
        environment = {"XDG_CACHE_HOME": str(self.cache), "TMPDIR": str(self.elsewhere)}
        error = next(self.errors)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(60)
            fields = {"port": listener.getsockname()[1], "error": str(error), "environment": environment}
            fields |= {"folder": str(self.model), "request": REQUEST}
            print(json.dumps(fields | options), file=self.starter.stdin, flush=True)
            with listener.accept()[0] as connection:
                return RunningStart(connection, error)

    def run(self, **options: Any) -> tuple[int, str, str]:
        """Load the model in a new process; return its exit code, output and standard error."""
        return self.begin(**options).wait()

    def expect_success(self, truth: Sequence[int], *, stages: Sequence[int], mount: str = "") -> None:
        """Check that loading succeeds and runs exactly these stages of the preparation."""
        code, out, err = self.run(mount=mount)
        assert code == 0, err
        *lines, text = out.splitlines()
        assert json.loads(text) == truth
        assert lines == [f"stage {stage}" for stage in stages]

    def expect_no_leftovers(self) -> None:
        """Check that there is at most one complete converted model, and no temporary folder."""
        folders = [each for each in self.stored.iterdir() if each.is_dir()] if self.stored.is_dir() else []
        assert len(folders) <= 1
        for folder in folders:
            assert sorted(each.name for each in folder.iterdir()) == [WEIGHTS, GRAPH, MANIFEST]
        assert list(self.elsewhere.glob("antiphon-*")) == []


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    tiny_model().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def truth(saved: Path) -> list[int]:
    """Tokens that torch generates without drafts."""
    model = LanguageModel.from_pretrained(saved, engine="torch", drafter="nothing")
    return list(model.generate(**REQUEST).tokens)


@pytest.fixture(scope="module")
def may_mount(tmp_path_factory: pytest.TempPathFactory) -> bool:
    """Whether this user may mount file systems."""
    tried = [*PRIVATE, "mount", "-t", "tmpfs", "tmpfs", str(tmp_path_factory.mktemp("mounted"))]
    return shutil.which(PRIVATE[0]) is not None and subprocess.run(tried, capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def starter(may_mount: bool) -> Iterator[subprocess.Popen[str]]:
    """The server process that forks all loading processes, if possible in a private mount namespace."""
    command = [*(PRIVATE if may_mount else ()), sys.executable, "-W", "ignore", "-m", f"{__package__}.start_process"]
    paths = os.pathsep.join([*(str(ROOT / package) for package in PACKAGES), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as process:
        yield process


@pytest.fixture
def starts(tmp_path: Path, saved: Path, starter: subprocess.Popen[str]) -> Starts:
    shutil.copytree(saved, tmp_path / "model")
    return Starts(tmp_path, starter)


@pytest.fixture
def _mounts(may_mount: bool) -> None:
    """Skip the test if this user may not mount file systems."""
    if not may_mount:
        pytest.skip("this user may not mount file systems")


@pytest.mark.parametrize(
    "moment",
    [
        r"^stage 0",
        pytest.param(r"^tempfile.mkdtemp .*/\.unfinished-", marks=pytest.mark.exhaustive),
        pytest.param(r"^open .*/\.unfinished-\w+/graph\.xml", marks=pytest.mark.exhaustive),
        pytest.param(r"^open .*/\.unfinished-\w+/manifest\.json", marks=pytest.mark.exhaustive),
        r"^os.rename .*/\.unfinished-",
        r"^stage 1",
    ],
)
def test_the_next_start_recovers_from_a_killed_one(starts: Starts, truth: list[int], moment: str) -> None:
    code, out, err = starts.run(dies_at=moment)
    assert code == -signal.SIGKILL, err
    assert "[" not in out
    was_stored = moment == r"^stage 1"  # only the result of the self-test is missing
    starts.expect_success(truth, stages=(1, 2) if was_stored else (0, 1, 2))


@pytest.mark.exhaustive
def test_two_processes_that_convert_at_once_both_get_the_right_model(starts: Starts, truth: list[int]) -> None:
    both = [starts.begin(waits=True) for _ in range(2)]
    for process in both:
        assert process.lines.readline() == "stage 0\n"
    for process in both:
        process.send("go on\n")
    for process in both:
        code, out, err = process.wait()
        assert code == 0, err
        assert json.loads(out.splitlines()[-1]) == truth
    starts.expect_no_leftovers()
    starts.expect_success(truth, stages=())


def test_a_full_disk_is_reported_and_not_stored(starts: Starts, truth: list[int]) -> None:
    code, _, err = starts.run(max_file_bytes=SMALL)
    assert code == 1
    assert "engine is 'openvino', but it cannot run this LlamaForCausalLM" in err
    assert "is the disk full?" in err
    assert "Traceback" not in err
    starts.expect_no_leftovers()
    starts.expect_success(truth, stages=(0, 1, 2))


@pytest.mark.usefixtures("_mounts")
@pytest.mark.exhaustive
def test_a_cache_on_a_full_disk_is_not_used(starts: Starts, truth: list[int]) -> None:
    starts.expect_success(truth, mount=FULL, stages=(0, 1, 2))
    starts.expect_no_leftovers()


@pytest.mark.usefixtures("_mounts")
@pytest.mark.exhaustive
def test_a_read_only_cache_is_not_written(starts: Starts, truth: list[int]) -> None:
    starts.expect_success(truth, mount=READ_ONLY, stages=(0, 1, 2))
    starts.expect_no_leftovers()


@pytest.mark.exhaustive
@pytest.mark.usefixtures("_mounts")
def test_a_read_only_cache_is_read_if_it_is_complete(starts: Starts, truth: list[int]) -> None:
    starts.expect_success(truth, stages=(0, 1, 2))
    starts.expect_success(truth, mount=READ_ONLY, stages=())
    [folder] = [each for each in starts.stored.iterdir() if each.is_dir()]
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: len(content) // 2])
    starts.expect_success(truth, mount=READ_ONLY, stages=(0, 1, 2))
    assert (folder / WEIGHTS).stat().st_size == len(content) // 2
