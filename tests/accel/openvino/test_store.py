"""Converted models in the user's cache: complete or absent, whatever happens during conversion."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from antiphon.accel.engines.torch.traits import declared_traits
from antiphon.accel.files import MANIFEST
from tests.families.table import tiny_model

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install openvino")

from antiphon.accel.engines.openvino.conversion import paged_model
from antiphon.accel.engines.openvino.graph import PagedGraph
from antiphon.accel.engines.openvino.store import (
    GRAPH,
    WEIGHTS,
    fingerprint,
    load_or_convert,
)
from antiphon.accel.engines.openvino.weights import attach_weights, large_weights
from tests.accel.openvino.builders import in_precision, model_of

pytestmark = pytest.mark.slow

MODEL = model_of()


@cache
def converted(model: Any) -> Any:
    return paged_model(model, declared_traits(model))


class Converter:
    """Converts the model and counts the calls."""

    def __init__(self, model: Any = MODEL) -> None:
        self.model = model
        self.calls = 0

    def __call__(self) -> Any:
        self.calls += 1
        return converted(self.model)


def expect_complete(graph: Any) -> None:
    """Check that the graph compiles with the model's weights and has its vocabulary and layers."""
    weights = attach_weights(graph, MODEL)
    assert len(weights) == len(large_weights(MODEL))
    compiled = PagedGraph(graph, precision="f32", threads=1, weights=weights)
    assert compiled.vocab_size == MODEL.config.vocab_size
    assert len(compiled.cache_shapes) == MODEL.config.num_hidden_layers


def test_a_model_is_converted_once(tmp_path: Path) -> None:
    converter = Converter()
    expect_complete(load_or_convert(tmp_path / "model", converter))
    expect_complete(load_or_convert(tmp_path / "model", converter))
    assert converter.calls == 1
    assert sorted(each.name for each in (tmp_path / "model").iterdir()) == [WEIGHTS, GRAPH, MANIFEST]
    assert [each.name for each in tmp_path.iterdir()] == ["model"]


def test_without_a_writable_cache_the_model_is_converted_for_this_process(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    expect_complete(load_or_convert(tmp_path / "cache" / "model", Converter()))
    assert [each.name for each in tmp_path.iterdir()] == ["cache"]


def test_every_weight_and_every_setting_changes_the_fingerprint() -> None:
    keys = [fingerprint(MODEL), fingerprint(tiny_model(seed=1)), fingerprint(tiny_model(rms_norm_eps=1e-3))]
    changed = tiny_model()
    with torch.no_grad():
        next(changed.parameters())[3, 3] += 1e-3
    keys += [fingerprint(changed), fingerprint(in_precision(tiny_model(), torch.bfloat16))]
    assert len(set(keys)) == len(keys)
    assert fingerprint(tiny_model()) == keys[0]


def test_constants_share_the_memory_of_the_model(tmp_path: Path) -> None:
    model = in_precision(tiny_model(tie_word_embeddings=True), torch.bfloat16)
    graph = load_or_convert(tmp_path / "model", Converter(model))
    owners = attach_weights(graph, model)
    addresses = {each.data_ptr() for each in large_weights(model).values()}
    assert {each.ctypes.data for each in owners} == addresses
    constants = [node for node in graph.get_ops() if node.get_type_name() == "Constant"]
    large = [node for node in constants if node.get_friendly_name() in large_weights(model)]
    assert {node.data.ctypes.data for node in large} == addresses
