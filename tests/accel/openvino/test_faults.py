"""A model's first start on OpenVINO where something goes wrong: a sentence or a second try, and never a wrong model.

Each start is a process of its own over one cache, from `LanguageModel.from_pretrained` down; see `starting`.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
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


class Starts:
    """Starts one model again and again, in processes that share a cache."""

    def __init__(self, folder: Path) -> None:
        self.model, self.cache, self.elsewhere = folder / "model", folder / "cache", folder / "elsewhere"
        for each in (self.cache, self.elsewhere):
            each.mkdir()

    @property
    def kept(self) -> Path:
        """Where converted models are kept."""
        return self.cache / "antiphon" / "openvino"

    def begin(self, *options: str, mount: str = "") -> subprocess.Popen[str]:
        """One more start; ``mount`` is run before it, and is seen by it alone."""
        command = [sys.executable, "-W", "ignore", "-m", f"{__package__}.starting", str(self.model)]
        command += [json.dumps(REQUEST), *options]
        if mount:
            command = [*PRIVATE, "sh", "-c", f'{mount} && exec "$@"', "sh", *command]
        paths = [str(ROOT / room) for room in ROOMS]
        environment = os.environ | {
            "XDG_CACHE_HOME": str(self.cache),
            "TMPDIR": str(self.elsewhere),
            "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
            "OMP_NUM_THREADS": "1",
        }
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(command, **pipes, text=True, cwd=ROOT, env=environment)  # type: ignore[call-overload, no-any-return]

    def run(self, *options: str, mount: str = "") -> tuple[int, str, str]:
        """How a start ended: its code, and what it wrote."""
        process = self.begin(*options, mount=mount)
        out, err = process.communicate()
        return process.returncode, out, err

    def expect_right(self, truth: Sequence[int], *options: str, mount: str = "", stages: Sequence[int]) -> None:
        """A start ends well, after these stages of the preparation."""
        code, out, err = self.run(*options, mount=mount)
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


@pytest.fixture
def starts(tmp_path: Path, saved: Path) -> Starts:
    shutil.copytree(saved, tmp_path / "model")
    return Starts(tmp_path)


@pytest.fixture(scope="module")
def _mounts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips where nobody may mount anything."""
    place = str(tmp_path_factory.mktemp("mounted"))
    tried = [*PRIVATE, "mount", "-t", "tmpfs", "tmpfs", place]
    if shutil.which(PRIVATE[0]) is None or subprocess.run(tried, capture_output=True, check=False).returncode:
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
    code, out, err = starts.run("--dies-at", moment)
    assert code == -signal.SIGKILL, err
    assert "[" not in out
    was_kept = moment == r"^stage 1"  # what it lacks there is the verdict alone
    starts.expect_right(truth, stages=(1, 2) if was_kept else (0, 1, 2))


def test_two_processes_that_convert_at_once_both_end_with_the_right_model(starts: Starts, truth: list[int]) -> None:
    both: Any = [starts.begin("--waits") for _ in range(2)]
    for process in both:
        assert process.stdout.readline() == "stage 0\n"
    for process in both:
        process.stdin.write("go on\n")
        process.stdin.flush()
    for process in both:
        out, err = process.communicate()
        assert process.returncode == 0, err
        assert json.loads(out.splitlines()[-1]) == truth
    starts.expect_nothing_left()
    starts.expect_right(truth, stages=())


def test_where_no_file_finds_room_it_is_said_and_not_remembered(starts: Starts, truth: list[int]) -> None:
    code, _, err = starts.run("--largest", f"{SMALL}")
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
