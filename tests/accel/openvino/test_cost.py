"""The cost of OpenVINO's forward passes: every number of rows is measured twice, and the result is stored."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from antiphon.accel.drafting.cost_model import StepCost
from antiphon.accel.drafting.draft import Logits
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


@pytest.mark.parametrize("number", ["0.25", "0.125"])
def test_shape_change_and_packing_are_stored(tmp_path: Path, number: str) -> None:
    path, key = tmp_path / "cost.json", {"engine": "openvino"}
    save(path, key, StepCost({64: {1: 1.0, 4: 1.5}}, shape_change=0.25, packing=0.125))
    kept = load(path, key)
    assert kept is not None
    assert (kept.seconds, kept.shape_change, kept.packing) == ({64: {1: 1.0, 4: 1.5}}, 0.25, 0.125)
    path.write_text(path.read_text().replace(number, "-1"))
    assert load(path, key) is None
