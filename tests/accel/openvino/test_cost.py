"""The cost of OpenVINO's forward passes is measured within a time budget."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from antiphon.accel.drafting.cost_model import StepCost
from antiphon.accel.drafting.draft import Logits
from antiphon.accel.engines.openvino import cost
from antiphon.accel.engines.openvino.cost import LONG_ROWS, ROWS, measure
from antiphon.accel.engines.openvino.engine import OpenVINOEngine
from antiphon.accel.engines.protocol import SequenceInput
from antiphon.accel.engines.torch.cost_store import load, save
from tests.accel.openvino.builders import engine_of, model_of


class Counting(OpenVINOEngine):
    """Counts its forward passes by cached tokens and rows."""

    forwards: Counter[tuple[int, int]]

    def forward(self, inputs: Sequence[SequenceInput]) -> list[Logits]:
        self.forwards[inputs[0].sequence.length, 1 + len(inputs[0].draft)] += 1
        return super().forward(inputs)


def test_every_row_count_is_measured_twice_because_the_first_pass_compiles_kernels() -> None:
    plain = engine_of(model_of())
    engine = Counting(plain.graph, memory=2**22)
    engine.forwards = Counter()
    found = measure(engine, contexts=(64, 128), seconds=0.0)
    assert engine.forwards == {(64, rows): 2 for rows in ROWS} | {(128, rows): 2 for rows in LONG_ROWS}
    assert set(found.seconds) == {64, 128}


def test_contexts_are_shortened_to_what_the_model_and_the_cache_hold() -> None:
    plain = engine_of(model_of())
    assert plain.max_positions is not None
    assert list(measure(plain, contexts=(64, 10**6), seconds=0.0).seconds) == [64, plain.max_positions - max(ROWS)]
    small = OpenVINOEngine(plain.graph, memory=2**19)
    assert list(measure(small, contexts=(64, 10**6), seconds=0.0).seconds) == [64, small.capacity - max(ROWS)]


def test_a_small_model_is_measured_for_a_shorter_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, counted = [0.0], Counter[int]()

    def took(engine: OpenVINOEngine, context: int, count: int) -> float:
        seconds = 0.01 if context == 64 else 0.011
        clock[0] += seconds
        counted[count] += 1
        return seconds

    monkeypatch.setattr(cost, "_time_forward", took)
    monkeypatch.setattr(cost, "perf_counter", lambda: clock[0])
    model = engine_of(model_of())
    cost.measure(model, contexts=(64, 128), seconds=60.0)
    assert 1.4 < clock[0] < 1.6, "that is the time of 150 plain steps"
    assert min(counted.values()) >= 2 * 2 * 2, "both contexts, two passes each time, and every row count twice"
    clock[0] = 0.0
    cost.measure(model, contexts=(64, 128), seconds=0.8)
    assert 0.8 <= clock[0] < 0.9


def test_a_change_of_the_row_count_is_measured_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    last: list[int] = []

    def took(engine: OpenVINOEngine, context: int, count: int) -> float:
        seconds = 1.0 + 0.1 * count + (0.0 if last == [count] else 5.0)
        last[:] = [count]
        return seconds

    monkeypatch.setattr(cost, "_time_forward", took)
    found = cost.measure(engine_of(model_of()), contexts=(64, 128), seconds=1.0)
    assert found.shape_change == pytest.approx(5.0)
    assert found.seconds[64] == pytest.approx({rows: 1.0 + 0.1 * rows for rows in sorted(ROWS)})


def test_packing_is_the_extra_cost_of_drafts_after_a_long_context(monkeypatch: pytest.MonkeyPatch) -> None:
    def took(engine: OpenVINOEngine, context: int, count: int) -> float:
        return 1.0 + 0.1 * count + context / 1000 * (1.0 if count == 1 else 3.0)

    monkeypatch.setattr(cost, "_time_forward", took)
    model = engine_of(model_of())
    assert cost.measure(model, contexts=(64, 128), seconds=0.0).packing == pytest.approx(2.0 / 1000)
    assert cost.measure(model, contexts=(64,), seconds=0.0).packing == 0.0
    monkeypatch.setattr(cost, "_time_forward", lambda engine, context, count: 1.0 + context / 1000 / count)
    assert cost.measure(model, contexts=(64, 128), seconds=0.0).packing == 0.0, "that is noise"


@pytest.mark.parametrize("number", ["0.25", "0.125"])
def test_shape_change_and_packing_are_stored(tmp_path: Path, number: str) -> None:
    path, key = tmp_path / "cost.json", {"engine": "openvino"}
    save(path, key, StepCost({64: {1: 1.0, 4: 1.5}}, shape_change=0.25, packing=0.125))
    kept = load(path, key)
    assert kept is not None
    assert (kept.seconds, kept.shape_change, kept.packing) == ({64: {1: 1.0, 4: 1.5}}, 0.25, 0.125)
    path.write_text(path.read_text().replace(number, "-1"))
    assert load(path, key) is None
