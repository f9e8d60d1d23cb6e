"""The compiled graph has no node that only moves data: the nodes of one more layer are counted."""

from collections import Counter

import pytest

from tests.families.table import tiny_model

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install openvino")

from antiphon.accel.engines.openvino.graph import PagedGraph
from antiphon.accel.engines.openvino.weights import attach_weights
from tests.accel.openvino.builders import graph_of


def node_counts(family: str, layers: int) -> Counter[str]:
    model = tiny_model(family, num_hidden_layers=layers)
    graph = graph_of(model)
    compiled = PagedGraph(graph, precision="f32", threads=1, weights=attach_weights(graph, model))._compiled
    kinds = [node.get_rt_info()["layerType"].astype(str) for node in compiled.get_runtime_model().get_ops()]
    return Counter(kind for kind in kinds if kind not in ("Const", "Input", "Output"))


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_layer_transposes_nothing_and_reshapes_six_times(family: str) -> None:
    """Two reshapes divide queries and keys into heads, three join heads for attention, one gives back the rows."""
    layer = node_counts(family, 3) - node_counts(family, 2)
    few = {"PagedAttention": 1, "RoPE": 2, "RMS": 2, "Eltwise": 3, "Reshape": 6}
    assert layer == Counter(few | {"FullyConnected": 7})
