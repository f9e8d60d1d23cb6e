"""16-bit weights stay 16-bit in memory: the compiled graph has no float32 copy of them."""

from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch

from antiphon.accel.testing.tiny import tiny_model

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install 'antiphon[openvino]'")

from antiphon.accel.engines.openvino.conversion import paged_model
from antiphon.accel.engines.openvino.store import load_or_convert
from antiphon.accel.engines.torch.traits import declared_traits
from tests.accel.openvino.builders import in_precision, unpacked_bytes


@pytest.fixture(scope="module")
def model() -> Any:
    return in_precision(tiny_model(hidden_size=128), torch.bfloat16)


def test_a_stored_graph_has_no_unpacked_weights(model: Any, tmp_path: Path) -> None:
    graph = load_or_convert(tmp_path / "model", lambda: paged_model(model, declared_traits(model)))
    assert unpacked_bytes(graph) == 0


def test_unmarked_weights_would_be_unpacked(model: Any, tmp_path: Path) -> None:
    graph = load_or_convert(tmp_path / "model", lambda: paged_model(model, declared_traits(model)))
    marked = [node for node in graph.get_ops() if "decompression_0" in node.get_rt_info()]
    for node in marked:
        del node.get_rt_info()["decompression_0"]
    weights = sum(prod(node.get_output_shape(0)) for node in marked)
    assert unpacked_bytes(graph) > 3 * weights > 0
