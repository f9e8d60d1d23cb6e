"""What forwards of the graph cost: how they are measured where time is short."""

from collections import Counter
from collections.abc import Sequence

from antiphon.accel.drafting.draft import Logits

# after `making`, which skips these tests where OpenVINO is not installed
from antiphon.accel.engines.openvino.cost import ROWS, measure
from antiphon.accel.engines.openvino.engine import OpenVINOEngine
from antiphon.accel.engines.protocol import Feed
from tests.accel.openvino.making import engine_of, model_of


class Counting(OpenVINOEngine):
    """Counts its forwards by how many tokens were held, and how many rows were fed."""

    forwards: Counter[tuple[int, int]]

    def forward(self, feeds: Sequence[Feed]) -> list[Logits]:
        self.forwards[feeds[0].sequence.length, 1 + len(feeds[0].draft)] += 1
        return super().forward(feeds)


def test_no_cost_is_that_of_a_first_forward_whose_kernels_are_made() -> None:
    plain = engine_of(model_of())
    engine = Counting(plain.graph, memory=2**22)
    engine.forwards = Counter()
    cost = measure(engine, contexts=(64, 128), seconds=0.0)
    assert engine.forwards == {(64, rows): 2 for rows in ROWS} | {(128, 1): 2}
    assert set(cost.seconds) == {64, 128}
