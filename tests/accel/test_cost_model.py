"""Cost model: measured on real forward passes, stored for later processes, and corrected by real steps."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch

from antiphon.accel import processor
from antiphon.accel.drafting.cost_model import CostModel, StepCost
from antiphon.accel.engines.torch import cost_measurement, cost_store
from antiphon.accel.engines.torch.cost_measurement import STEP_VERSION, measure_step_cost
from antiphon.accel.engines.torch.cost_store import cost_file, cost_key, load, load_credible, save
from antiphon.accel.engines.torch.engine import engine_of
from antiphon.accel.engines.torch.sequence import TorchSequence
from antiphon.accel.processor import LoadMeter
from tests.families.table import tiny_model

COST = StepCost({100: {1: 1.0, 2: 1.5, 4: 2.0}, 200: {1: 1.5, 4: 4.0}})


@pytest.mark.parametrize(("rows", "seconds"), [(1, 1.0), (2, 1.5), (3, 1.75), (4, 2.0), (6, 2.5)])
def test_costs_are_interpolated_linearly_and_extrapolated_beyond_the_last_point(rows: int, seconds: float) -> None:
    assert COST.curve(100, rows)[-1] == pytest.approx(seconds)


def sequences_of(model: Any) -> Callable[[], TorchSequence]:
    """Return a factory of sequences of one model whose self-test is done."""
    traits = engine_of(model).traits
    return lambda: TorchSequence(model, traits)


@pytest.mark.parametrize("family", ["llama", "gemma3", "bloom", "mamba2", "zamba2", "llama4"])
def test_every_number_of_rows_is_measured_after_every_context(family: str) -> None:
    model = tiny_model(family)
    make = sequences_of(model)
    fed: list[int] = []
    model.register_forward_hook(lambda *call: fed.append(call[2]["input_ids"].shape[1]), with_kwargs=True)
    cost = measure_step_cost(make, rows=(2, 6), contexts=(20, 90), seconds=20)
    assert {context: list(row) for context, row in cost.seconds.items()} == {20: [1, 2, 6], 90: [1, 2, 6]}
    assert all(seconds > 0 for row in cost.seconds.values() for seconds in row.values())
    assert fed[:2] == [16, 16], "most of the context is not prefilled"
    assert all(fed.count(rows) >= 2 * 2 for rows in (1, 2, 6)), "each number of rows is measured several times"
    assert fed.count(6) <= 2 * 6


@pytest.mark.parametrize(
    ("positions", "context", "counts"), [(512, 300, [1, 8, 32]), (72, 22, [1, 8, 32]), (30, 1, [1, 8])]
)
def test_no_row_is_measured_beyond_the_last_position_of_the_model(
    positions: int, context: int, counts: list[int]
) -> None:
    model = tiny_model("gpt2", n_positions=positions, max_position_embeddings=positions)  # more positions fail
    cost = measure_step_cost(sequences_of(model), rows=(8, 32), contexts=(300,))
    assert {key: list(row) for key, row in cost.seconds.items()} == {context: counts}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def _undoubted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept every measurement: on a busy machine the steps of a tiny model can look implausible."""
    monkeypatch.setattr(cost_store, "MIN_SECONDS", inf)


@pytest.mark.usefixtures("_undoubted")
def test_costs_are_measured_once_for_all_processes(cache: Path) -> None:
    other = tiny_model()
    first = engine_of(other).step_cost()
    (path,) = (cache / "antiphon" / "step-costs").iterdir()
    model = tiny_model()  # a new object, as in another process
    fed: list[object] = []
    model.register_forward_hook(lambda *call: fed.append(call))
    assert engine_of(model).step_cost().seconds == first.seconds
    assert fed == []
    assert engine_of(model).step_cost(remeasure=True).seconds != first.seconds
    assert load(path, cost_key(model)) is not None
    assert [each.name for each in path.parent.iterdir()] == [path.name], "no temporary file is left"


@pytest.mark.usefixtures("_undoubted")
@pytest.mark.parametrize("content", ["", "{", "[]", '{"seconds": {}}', '{"seconds": {"64": {"2": 1.0}}}', "\x00"])
def test_costs_are_measured_again_if_their_file_is_damaged(cache: Path, content: str) -> None:
    model = tiny_model()
    path = cost_file(cost_key(model))
    path.parent.mkdir(parents=True)
    path.write_text(content)
    cost = engine_of(model).step_cost()
    assert 1 in cost.seconds[64]
    assert json.loads(path.read_text())["key"] == cost_key(model)


def test_costs_of_another_model_machine_or_setting_are_never_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = cost_key(tiny_model())
    others = [cost_key(tiny_model("gpt2")), cost_key(tiny_model(intermediate_size=80))]
    others.append(cost_key(tiny_model(attn_implementation="eager")))
    half: Any = tiny_model()
    others.append(cost_key(half.to(torch.bfloat16)))
    with monkeypatch.context() as patch:
        patch.setattr(cost_measurement, "STEP_VERSION", STEP_VERSION + 1)
        others.append(cost_key(tiny_model()))
    with monkeypatch.context() as patch:
        patch.setenv("ONEDNN_MAX_CPU_ISA", "avx2")
        others.append(cost_key(tiny_model()))
    assert len({cost_file(each) for each in [key, *others]}) == 7
    assert cost_key(tiny_model(seed=5)) == key, "weights do not change what a forward costs"
    save(cost_file(key), key, COST)
    assert load(cost_file(key), others[0]) is None


@pytest.mark.parametrize(
    ("cost", "plain", "is_taken"),
    [
        (COST, 1.0, True),
        (COST, 0.8, True),
        (COST, 0.5, False),
        (StepCost({100: {1: 1.0, 2: 1.5, 4: 1.1}}), 1.0, True),
        (StepCost({100: {1: 1.0, 2: 1.8, 4: 1.1}}), 1.0, False),
        (StepCost({100: {1: 1.0}, 200: {1: 2.0, 4: 1.2}}), 1.0, False),
        (StepCost({100: {1: 1.0, 2: 1.5}}, shape_change=0.9), 1.0, True),
        (StepCost({100: {1: 1.0, 2: 1.5}}, shape_change=1.1), 1.0, False),
        (StepCost({100: {1: 1e-3, 2: 1e-2, 4: 1e-3}}, shape_change=1.0), 1e-4, True),
    ],
)
def test_costs_measured_on_a_busy_machine_are_not_used(
    tmp_path: Path, cost: StepCost, plain: float, is_taken: bool
) -> None:
    path, key, asked = tmp_path / "cost.json", {"model": "one"}, list[int]()
    save(path, key, cost)
    found = load_credible(path, key, lambda context: asked.append(context) or plain)  # type: ignore[func-returns-value]
    assert (None if found is None else found.seconds) == (cost.isotonic().seconds if is_taken else None)
    assert asked in ([], [next(iter(cost.seconds))])


def test_costs_of_several_starts_on_a_busy_machine_become_credible_together(tmp_path: Path) -> None:
    path, key = tmp_path / "cost.json", {"model": "one"}
    first = StepCost({64: {1: 9.0, 4: 1.2, 8: 1.4}, 1024: {1: 1.5}}, 0.3, 0.2)
    second = StepCost({64: {1: 1.0, 4: 5.0, 16: 2.0}, 1024: {1: 7.5}}, 0.1, 0.4)
    assert save(path, key, first).seconds == {64: {1: 1.2, 4: 1.2, 8: 1.4}, 1024: {1: 1.5}}, "none falls with the rows"
    assert load_credible(path, key, lambda context: 1.0) is None
    together = save(path, key, second)
    assert together.seconds == {64: {1: 1.0, 4: 1.2, 8: 1.4, 16: 2.0}, 1024: {1: 1.5}}
    assert (together.shape_change, together.packing) == (0.1, 0.2)
    found: Any = load_credible(path, key, lambda context: 1.0)
    assert found.seconds == together.seconds
    assert save(path, key, COST).seconds == COST.seconds, "a credible measurement replaces earlier ones"


def test_costs_of_a_busy_machine_are_measured_again_until_it_is_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, key = tmp_path / "cost.json", {"model": "one"}
    slow = replace(COST, is_quiet=False)
    for _ in range(cost_store.MAX_MEASUREMENTS):
        assert load_credible(path, key, lambda context: 1.0) is None
        save(path, key, slow)
    monkeypatch.setattr(LoadMeter, "is_quiet", lambda _, waits=False: False)
    assert load_credible(path, key, lambda context: 1.0) is not None, "it may never be quiet"
    monkeypatch.setattr(LoadMeter, "is_quiet", lambda _, waits=False: True)
    assert load_credible(path, key, lambda context: 1.0) is None
    save(path, key, COST)
    assert load_credible(path, key, lambda context: 1.0) is not None


def test_a_machine_with_another_busy_process_is_not_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "MAX_OTHERS", 1e-3)  # for machines with many processors
    meter = LoadMeter()
    assert not meter.is_quiet(), "the time is too short to tell"
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"], check=True)
    assert not meter.is_quiet()


def online_model() -> CostModel:
    return CostModel(StepCost({64: {1: 1.0, 8: 1.0, 64: 1.0}}))


def test_a_wrong_curve_is_corrected_by_real_steps() -> None:
    cost = online_model()
    for _ in range(100):
        cost.observe(1, 64, 1.0)
        cost.observe(8, 64, 2.0)
    seconds = cost.seconds(64, 8)
    assert 1.7 < seconds[7] / seconds[0] < 2.2
