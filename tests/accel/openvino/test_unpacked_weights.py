"""16-bit weights stay 16-bit in memory: the compiled graph has no float32 copy of them."""

from typing import Any

import pytest
import torch

from tests.tiny import tiny_model

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install openvino")

from antiphon.accel.engines.openvino.graph import PagedGraph
from antiphon.accel.engines.openvino.runtime import supports_precision
from tests.accel.openvino.builders import compiled, graph_of, in_precision, layer_types, unpacked_bytes


def test_a_converted_model_has_no_unpacked_weights() -> None:
    assert unpacked_bytes(graph_of(in_precision(tiny_model(hidden_size=128), torch.bfloat16))) == 0


def test_the_products_of_an_mlp_block_are_not_fused_in_bfloat16() -> None:
    """OpenVINO's fused MLP block keeps a second copy of its weights."""
    graph: Any = graph_of(in_precision(tiny_model(hidden_size=128, intermediate_size=256), torch.bfloat16))
    if not supports_precision("bf16") or "LLMMLP" not in layer_types(compiled(graph.clone(), "bf16")):
        pytest.skip("OpenVINO does not fuse MLP blocks on this processor")
    assert "LLMMLP" not in layer_types(PagedGraph(graph, precision="bf16", threads=2)._compiled)
