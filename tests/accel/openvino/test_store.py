"""Converted models in the user's cache: whole or not at all, whatever happens in the middle."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from antiphon.accel.engines.torch.traits import declared
from antiphon.accel.testing.tiny import tiny_model

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install 'antiphon[openvino]'")

from antiphon.accel.engines.openvino.conversion import paged_model
from antiphon.accel.engines.openvino.graph import PagedGraph
from antiphon.accel.engines.openvino.opening import obstacle_of, open_engine
from antiphon.accel.engines.openvino.store import GRAPH, RECEIPT, WEIGHTS, fingerprint, folder_of, keep, read, stored
from tests.accel.openvino.making import in_precision

MODEL = tiny_model()
CONVERTING = """
import sys, torch
from pathlib import Path
from antiphon.accel.engines.openvino.conversion import paged_model
from antiphon.accel.engines.openvino.store import stored
from antiphon.accel.engines.torch.traits import declared
from antiphon.accel.testing.tiny import tiny_model
model = tiny_model()
print("begun", flush=True)
stored(Path(sys.argv[1]), lambda: paged_model(model, declared(model)))
print("done", flush=True)
"""


class Converter:
    """Converts the model, and counts how often."""

    def __init__(self, model: Any = MODEL) -> None:
        self.model = model
        self.calls = 0

    def __call__(self) -> Any:
        self.calls += 1
        return paged_model(self.model, declared(self.model))


def expect_whole(graph: Any) -> None:
    """It compiles, and has the model's vocabulary and layers."""
    compiled = PagedGraph(graph, precision="f32", threads=1)
    assert compiled.vocabulary == MODEL.config.vocab_size
    assert len(compiled.heads) == MODEL.config.num_hidden_layers


def converting(folder: Path) -> subprocess.Popen[str]:
    root = Path(__file__).parents[3]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root / "accel"), os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", CONVERTING, str(folder)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


def test_a_model_is_converted_once(tmp_path: Path) -> None:
    converter = Converter()
    expect_whole(stored(tmp_path / "model", converter))
    expect_whole(stored(tmp_path / "model", converter))
    assert converter.calls == 1
    assert sorted(each.name for each in (tmp_path / "model").iterdir()) == [WEIGHTS, GRAPH, RECEIPT]
    assert [each.name for each in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("name", [GRAPH, WEIGHTS, RECEIPT])
@pytest.mark.parametrize("damage", ["a byte", "the end", "all of it"])
def test_a_damaged_folder_is_made_anew(tmp_path: Path, name: str, damage: str) -> None:
    folder = tmp_path / "model"
    stored(folder, Converter())
    content = (folder / name).read_bytes()
    middle = len(content) // 2
    if damage == "a byte":
        (folder / name).write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    elif damage == "the end":
        (folder / name).write_bytes(content[:middle])
    else:
        (folder / name).unlink()
    assert read(folder) is None
    converter = Converter()
    expect_whole(stored(folder, converter))
    assert converter.calls == 1
    assert read(folder) is not None
    assert [each.name for each in tmp_path.iterdir()] == ["model"]


def test_a_conversion_that_is_killed_leaves_no_model_and_the_next_one_succeeds(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    for pause in (0.0, 0.5):
        process = converting(folder)
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(pause)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert read(folder) is None or folder.is_dir()
    expect_whole(stored(folder, Converter()))
    assert read(folder) is not None


def test_what_a_killed_conversion_left_is_removed_an_hour_later(tmp_path: Path) -> None:
    fresh, old = tmp_path / ".unfinished-new", tmp_path / ".unfinished-old"
    for beside in (fresh, old):
        beside.mkdir()
        (beside / WEIGHTS).write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    stored(tmp_path / "model", Converter())
    assert fresh.exists()
    assert not old.exists()


def test_two_processes_that_convert_at_once_both_have_the_model(tmp_path: Path) -> None:
    processes = [converting(tmp_path / "model") for _ in range(2)]
    for process in processes:
        output, errors = process.communicate(timeout=240)
        assert output == "begun\ndone\n", errors
    expect_whole(read(tmp_path / "model"))
    assert [each.name for each in tmp_path.iterdir()] == ["model"]


def test_a_folder_that_somebody_else_has_made_meanwhile_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    graph = Converter()()
    keep(folder, graph)
    made = (folder / RECEIPT).stat().st_mtime_ns
    keep(folder, graph)
    assert (folder / RECEIPT).stat().st_mtime_ns == made
    assert [each.name for each in tmp_path.iterdir()] == ["model"]


def test_where_nothing_can_be_written_the_model_is_converted_for_this_process(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    expect_whole(stored(tmp_path / "cache" / "model", Converter()))
    assert [each.name for each in tmp_path.iterdir()] == ["cache"]


def test_a_disk_that_is_full_leaves_no_half_model(tmp_path: Path) -> None:
    """A limit on the size of files is what a full disk looks like to who writes; in a process of its own."""
    script = (
        "import resource, signal, sys, tempfile\nfrom pathlib import Path\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from antiphon.accel.engines.openvino.conversion import paged_model\n"
        "from antiphon.accel.engines.openvino.store import read, stored\n"
        "from antiphon.accel.engines.torch.traits import declared\n"
        "from antiphon.accel.testing.tiny import tiny_model\n"
        "model, folder = tiny_model(), Path(sys.argv[1])\n"
        "graph = paged_model(model, declared(model))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        "try:\n    stored(folder, lambda: graph)\n"
        "except OSError as error:\n    print('refused', read(folder), sorted(folder.parent.iterdir()))\n"
    )
    root = Path(__file__).parents[3]
    environment = os.environ | {"PYTHONPATH": str(root / "accel"), "TMPDIR": str(tmp_path / "elsewhere")}
    (tmp_path / "elsewhere").mkdir()
    command = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "cache" / "model")]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert run.stdout == "refused None []\n", run.stderr[-2000:]
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_every_weight_and_every_setting_has_a_model_of_its_own() -> None:
    keys = [fingerprint(MODEL), fingerprint(tiny_model(seed=1)), fingerprint(tiny_model(rms_norm_eps=1e-3))]
    changed = tiny_model()
    with torch.no_grad():
        next(changed.parameters())[3, 3] += 1e-3
    keys += [fingerprint(changed), fingerprint(in_precision(tiny_model(), torch.bfloat16))]
    assert len(set(keys)) == len(keys)
    assert fingerprint(tiny_model()) == keys[0]


def test_weights_that_are_bfloat16_numbers_are_kept_in_half_the_bytes_and_exactly(tmp_path: Path) -> None:
    model = in_precision(tiny_model(hidden_size=128), torch.bfloat16).float()
    other = tiny_model(hidden_size=128)
    sizes = []
    for name, each in (("half", model), ("whole", other)):
        stored(tmp_path / name, Converter(each))
        sizes.append((tmp_path / name / WEIGHTS).stat().st_size)
    assert sizes[0] < 0.6 * sizes[1]


def test_an_engine_is_opened_from_what_was_kept_and_a_wrong_one_is_never_used() -> None:
    opened = open_engine(MODEL, memory=2**22)
    assert opened.engine is not None
    assert "with trees" in opened.reason
    assert opened.engine.shared_cost is not None
    assert np.isfinite(opened.engine.shared_cost.seconds(64, 16)).all()
    folder = folder_of(fingerprint(MODEL))
    (folder / "self-test-f32.json").unlink()
    keep(folder.parent / "other", Converter(tiny_model(seed=1))())
    for name in (GRAPH, WEIGHTS, RECEIPT):
        (folder / name).write_bytes((folder.parent / "other" / name).read_bytes())
    refused = open_engine(MODEL, memory=2**22)
    assert refused.engine is None
    assert "does not say what this model says; the prefill of a short text" in refused.reason
    (folder / RECEIPT).unlink()


@pytest.mark.parametrize("family", ["bloom", "gemma2", "mamba2"])
def test_a_family_that_stays_on_torch_says_why(family: str) -> None:
    opened = open_engine(tiny_model(family))
    assert opened.engine is None
    assert opened.reason.startswith("OpenVINO cannot run this model: ")


def test_a_type_that_this_engine_does_not_compute_in_is_said() -> None:
    assert (
        obstacle_of(in_precision(tiny_model(), torch.float64)) == "This CPU does not compute in float64 under OpenVINO."
    )
    assert obstacle_of(tiny_model()) is None
