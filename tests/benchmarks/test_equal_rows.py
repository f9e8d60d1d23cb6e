"""The graph of OpenVINO GenAI, with which forward passes are compared."""

import pytest
import torch

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install openvino")

from antiphon.accel.engines.openvino.runtime import core
from antiphon.accel.engines.openvino.store import GRAPH
from benchmarks.equal_rows import ExportedGraph, compare_rows, our_forward
from benchmarks.stateful_graph import export_stateful
from tests.accel.openvino.builders import engine_of, in_precision, unpacked_bytes
from tests.tiny import tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

OPTIONS = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}


def test_both_graphs_compute_the_same_tokens_from_16_bit_weights() -> None:
    model = in_precision(tiny_model(hidden_size=128), torch.bfloat16)
    graph = export_stateful(model) / GRAPH
    assert unpacked_bytes(core().read_model(graph)) == 0
    ours, theirs = our_forward(engine_of(model)), ExportedGraph(graph, OPTIONS, 64).forward
    assert ours(0, 9) == theirs(0, 9)
    [figures] = compare_rows(ours, theirs, rows=(3,), contexts=(40,), rounds=2)
    assert (figures["context"], figures["rows"]) == (40, 3)
    assert min(figures["ms"], figures["genai_ms"], figures["ratio"]) > 0
