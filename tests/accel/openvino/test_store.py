"""Converted models in the user's cache: whole or not at all, whatever happens in the middle."""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from antiphon.accel.engines.torch.traits import declared_traits
from antiphon.accel.testing.tiny import tiny_model

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install 'antiphon[openvino]'")

from antiphon.accel.engines.openvino.conversion import paged_model
from antiphon.accel.engines.openvino.graph import PagedGraph
from antiphon.accel.engines.openvino.loader import obstacle_of, load_engine
from antiphon.accel.engines.openvino.store import (
    GRAPH,
    RECEIPT,
    UNFINISHED,
    WEIGHTS,
    fingerprint,
    folder_of,
    keep,
    read,
    stored,
)
from tests.accel.openvino.builders import in_precision, model_of

MODEL = model_of()
CONVERTING = """
import sys, torch
from pathlib import Path
from antiphon.accel.engines.openvino.conversion import paged_model
from antiphon.accel.engines.openvino.store import stored
from antiphon.accel.engines.torch.traits import declared_traits
from antiphon.accel.testing.tiny import tiny_model
model = tiny_model()
print("begun", flush=True)
stored(Path(sys.argv[1]), lambda: paged_model(model, declared_traits(model)))
print("done", flush=True)
"""


@cache
def converted(model: Any) -> Any:
    return paged_model(model, declared_traits(model))


class Converter:
    """Converts the model, and counts how often it is asked to."""

    def __init__(self, model: Any = MODEL) -> None:
        self.model = model
        self.calls = 0

    def __call__(self) -> Any:
        self.calls += 1
        return converted(self.model)


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


def test_a_conversion_that_is_killed_leaves_no_model_to_those_that_convert_at_the_same_time(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    killed = converting(folder)
    assert killed.stdout is not None
    assert killed.stdout.readline() == "begun\n"
    converters = [Converter() for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(stored, folder, each) for each in converters]
        killed.kill()
        killed.communicate()
        for other in others:
            expect_whole(other.result())
    expect_whole(read(folder))
    left = [each.name for each in tmp_path.iterdir() if each.name != "model"]
    assert len(left) <= 1, "of the one that was killed"
    assert all(name.startswith(UNFINISHED) for name in left)


def test_what_a_killed_conversion_left_is_removed_an_hour_later(tmp_path: Path) -> None:
    fresh, old = tmp_path / ".unfinished-new", tmp_path / ".unfinished-old"
    for beside in (fresh, old):
        beside.mkdir()
        (beside / WEIGHTS).write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    stored(tmp_path / "model", Converter())
    assert fresh.exists()
    assert not old.exists()


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


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """A limit on the size of files: what a full disk looks like to who writes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_is_full_leaves_no_half_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "cache" / "model"
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    converter = Converter()
    with largest_file(200_000), pytest.raises(OSError, match="converted model"):
        stored(folder, converter)
    assert read(folder) is None
    assert list(folder.parent.iterdir()) == []
    assert list(elsewhere.iterdir()) == []


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


def test_an_engine_is_opened_from_what_was_kept() -> None:
    opened = load_engine(MODEL, memory=2**22)
    assert opened.engine is not None
    assert "agrees with torch" in opened.reason
    assert opened.engine.batch_cost is not None
    assert np.isfinite(opened.engine.batch_cost.seconds(64, 16)).all()
    assert read(folder_of(fingerprint(MODEL))) is not None


@pytest.mark.parametrize("family", ["bloom", "mamba2"])
def test_a_family_that_stays_on_torch_says_why(family: str) -> None:
    opened = load_engine(tiny_model(family))
    assert opened.engine is None
    assert opened.reason.startswith("OpenVINO cannot run this model: ")


def test_a_type_that_this_engine_does_not_compute_in_is_said() -> None:
    assert (
        obstacle_of(in_precision(tiny_model(), torch.float64)) == "This CPU does not compute in float64 under OpenVINO."
    )
    assert obstacle_of(tiny_model()) is None
