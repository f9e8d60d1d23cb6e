"""MLP blocks: adjacent gate and up products become one, without a copy and without a change of the logits."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from antiphon.accel.engines.torch.traits import declared_traits
from antiphon.accel.testing.tiny import tiny_model

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install 'antiphon[openvino]'")

from antiphon.accel.engines.openvino.conversion import paged_model
from antiphon.accel.engines.openvino.engine import OpenVINOEngine
from antiphon.accel.engines.openvino.graph import PagedGraph
from antiphon.accel.engines.openvino.mlp import find_gated_blocks, merge_gate_and_up
from antiphon.accel.engines.openvino.weights import attach_weights
from tests.accel.openvino.builders import MEMORY, expect_plain, step, text_of, tree_of

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
    assert num_products(graph) == before - blocks
    draft = tree_of(text_of(5, seed=2))
    expect_plain(mapped, TEXT, draft, step(engine, engine.sequence(), TEXT, draft))


def test_weights_that_are_apart_are_left_alone() -> None:
    model = tiny_model("llama", intermediate_size=128)
    for layer in model.model.layers:  # a copy elsewhere in memory
        layer.mlp.up_proj.weight.data = layer.mlp.up_proj.weight.data.clone()
    graph = paged_model(model, declared_traits(model))
    owners = attach_weights(graph, model)
    before = num_products(graph)
    assert merge_gate_and_up(graph, owners) == 0
    assert num_products(graph) == before


def test_blocks_without_a_gate_are_left_alone() -> None:
    model = tiny_model("gpt2")
    graph = paged_model(model, declared_traits(model))
    owners = attach_weights(graph, model)
    assert find_gated_blocks(graph) == []
    assert merge_gate_and_up(graph, owners) == 0
