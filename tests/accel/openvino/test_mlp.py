"""Compiled graphs: merged products, no copy of 16-bit weights, and no node that only moves data."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from antiphon.accel.engines.openvino.graph import PagedGraph
from antiphon.accel.engines.openvino.weights import attach_weights
from antiphon.accel.engines.torch.traits import declared_traits
from antiphon.accel.processor import processor_flags
from tests.accel.openvino.builders import graph_of
from tests.families.table import tiny_model

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install openvino")

from antiphon.accel.engines.openvino.conversion import paged_model
from antiphon.accel.engines.openvino.engine import OpenVINOEngine
from antiphon.accel.engines.openvino.mlp import find_gated_blocks, fuse_products
from antiphon.accel.engines.openvino.runtime import supports_precision
from antiphon.accel.engines.openvino.weights import TemporaryWeights
from tests.accel.openvino.builders import (
    MEMORY,
    compiled,
    expect_plain,
    in_precision,
    layer_types,
    step,
    text_of,
    tree_of,
    unpacked_bytes,
)

pytestmark = pytest.mark.slow

TEXT = text_of(40)


def num_products(graph: Any) -> int:
    return sum(node.get_type_name() == "MatMul" for node in graph.get_ops())


@pytest.fixture(params=["llama", "qwen3", "gemma"])
def mapped(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A model whose weights are mapped from its checkpoint, where gate and up are adjacent."""
    tiny_model(request.param, intermediate_size=128).save_pretrained(tmp_path)
    return AutoModelForCausalLM.from_pretrained(tmp_path).eval()


def test_adjacent_products_are_merged_and_the_logits_stay_those_of_a_plain_forward_pass(mapped: Any) -> None:
    graph = paged_model(mapped, declared_traits(mapped))
    owners = attach_weights(graph, mapped)
    before, blocks = num_products(graph), len(find_gated_blocks(graph))
    assert blocks == mapped.config.num_hidden_layers
    engine = OpenVINOEngine(PagedGraph(graph, precision="f32", threads=1, weights=owners), memory=MEMORY)
    assert num_products(graph) == before - blocks - 1  # the head is a separate graph
    draft = tree_of(text_of(5, seed=2))
    expect_plain(mapped, TEXT, draft, step(engine, engine.sequence(), TEXT, draft))


def kinds(graph: Any) -> set[str]:
    """Return the element types of large constants."""
    constants = (node for node in graph.get_ops() if node.get_type_name() == "Constant")
    return {each.get_element_type().get_type_name() for each in constants if each.get_byte_size() > 4096}


def half_model(*, largest: float = 0.0) -> Any:
    """Return a model in bfloat16; one of its MLP weights is ``largest`` if that is not 0."""
    model = tiny_model("llama", intermediate_size=128).bfloat16()
    if largest:
        model.model.layers[-1].mlp.down_proj.weight.data[0, 0] = largest
    return model


def test_blocks_with_weights_that_float16_does_not_have_are_not_fused() -> None:
    model = half_model(largest=1e5)
    graph = paged_model(model, declared_traits(model))
    owners = attach_weights(graph, model)
    assert fuse_products(graph, TemporaryWeights()) == 0
    assert "f16" not in kinds(graph)
    assert owners


@pytest.mark.skipif("amx_bf16" not in processor_flags(), reason="OpenVINO fuses MLP blocks on CPUs with AMX only")
def test_fused_blocks_give_the_same_logits_after_their_weights_were_freed() -> None:
    model = half_model()
    logits = []
    for fuses in (False, True):
        graph = paged_model(model, declared_traits(model))
        owners = attach_weights(graph, model)
        compiled = PagedGraph(graph, precision="bf16", threads=2, weights=owners, fuses_mlp=fuses)
        assert compiled.has_temporary_weights == fuses
        engine, draft = OpenVINOEngine(compiled, memory=MEMORY), tree_of(text_of(5, seed=2))
        assert not any(any(each[:]) for each in compiled._memory._maps)
        logits.append(step(engine, engine.sequence(), TEXT, draft).tensor())
    torch.testing.assert_close(logits[1], logits[0], atol=0.05 * float(logits[0].std()), rtol=0)


def test_a_converted_model_has_no_unpacked_weights() -> None:
    assert unpacked_bytes(graph_of(in_precision(tiny_model(hidden_size=128), torch.bfloat16))) == 0


def test_the_products_of_an_mlp_block_are_not_fused_in_bfloat16() -> None:
    """OpenVINO's fused MLP block keeps a second copy of its weights."""
    graph: Any = graph_of(in_precision(tiny_model(hidden_size=128, intermediate_size=256), torch.bfloat16))
    if not supports_precision("bf16") or "LLMMLP" not in layer_types(compiled(graph.clone(), "bf16")):
        pytest.skip("OpenVINO does not fuse MLP blocks on this processor")
    assert "LLMMLP" not in layer_types(PagedGraph(graph, precision="bf16", threads=2)._compiled)


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
