"""Engines of tiny models for tests, and comparisons of their logits with torch."""

from collections.abc import Sequence
from functools import cache
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor

from antiphon.accel.drafting.draft import EMPTY, ROOT, Draft, Logits, path_to
from antiphon.accel.engines.protocol import SequenceInput
from antiphon.accel.engines.torch.engine import traits_of
from tests.accel.oracles import ATOL, RTOL, plain_logits
from tests.families.table import tiny_model

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install openvino")

from antiphon.accel.engines.openvino.conversion import paged_model, windows_of
from antiphon.accel.engines.openvino.engine import OpenVINOEngine
from antiphon.accel.engines.openvino.graph import PagedGraph
from antiphon.accel.engines.openvino.paged_inputs import set_cache_shapes
from antiphon.accel.engines.openvino.runtime import core
from antiphon.accel.engines.openvino.sequence import PagedSequence
from antiphon.accel.engines.openvino.store import load_or_convert
from antiphon.accel.engines.openvino.weights import attach_weights

BRANCHES = (ROOT, ROOT, 1, 0, 2)
"""Parents of a tree of two interleaved branches: no row's depth equals its slot."""

MEMORY = 2**22

OWNERS: list[Any] = []
"""Owners of the memory of the converted models' constants."""

SMALL = 4096
"""Constants of fewer elements are stored in float32."""


@cache
def model_of(family: str = "llama", seed: int = 0) -> Any:
    """Return a tiny model, shared by all tests that do not change it."""
    return tiny_model(family, seed=seed)


@cache
def graph_of(model: Any) -> Any:
    """Return the converted model, read back from a file; converted once."""
    with TemporaryDirectory() as folder:
        graph = load_or_convert(Path(folder) / "model", lambda: paged_model(model, traits_of(model)))
    OWNERS.extend(attach_weights(graph, model))
    return graph


def engine_of(model: Any, *, memory: int = MEMORY, chunk: int = 512, precision: str = "f32") -> OpenVINOEngine:
    traits = traits_of(model)
    windows = [window for window in windows_of(traits) if window]
    graph = PagedGraph(graph_of(model).clone(), precision=precision, threads=1, weights=list(OWNERS))
    return OpenVINOEngine(
        graph,
        memory=memory,
        window=min(windows, default=None),
        max_positions=traits.max_positions,
        max_length=None if traits.rope is None else traits.rope.position,
        prefill_chunk=chunk,
    )


def text_of(size: int, seed: int = 0) -> list[int]:
    tokens: list[int] = torch.randint(1, 250, (size,), generator=torch.Generator().manual_seed(seed)).tolist()
    return tokens


def tree_of(tokens: Sequence[int]) -> Draft:
    return Draft(tuple(tokens[: len(BRANCHES)]), BRANCHES, (1.0,) * len(BRANCHES))


def step(engine: OpenVINOEngine, sequence: PagedSequence, text: Sequence[int], draft: Draft = EMPTY) -> Logits:
    """Run one forward pass over the uncached tokens of a text and a draft; return the logits."""
    return engine.forward([SequenceInput(sequence, text[sequence.length :], draft)])[0]


def expect_plain(model: Any, text: Sequence[int], draft: Draft, logits: Logits) -> None:
    """Check that the logits of the root and of every draft row equal those of plain forward passes in torch."""
    assert len(logits) == 1 + len(draft)
    for row in range(-1, len(draft)):
        path = path_to(draft, row)
        truth = plain_logits(model, [*text, *(draft.tokens[each] for each in path)])[-1]
        close(logits.tensor()[row + 1], truth)


def close(logits: Tensor, truth: Tensor) -> None:
    torch.testing.assert_close(logits, truth, atol=ATOL, rtol=RTOL)


def in_precision(model: Any, dtype: torch.dtype) -> Any:
    """Convert the model to another precision."""
    return model.to(dtype)


def compiled(graph: Any, precision: str = "f32") -> Any:
    """Compile a graph as it is."""
    set_cache_shapes(graph)
    return core().compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": precision})


def layer_types(compiled_graph: Any) -> set[str]:
    """Return the kinds of nodes that OpenVINO runs."""
    return {node.get_rt_info()["layerType"].astype(str) for node in compiled_graph.get_runtime_model().get_ops()}


def unpacked_bytes(graph: Any) -> int:
    """Return the bytes of large float32 constants in a graph after OpenVINO has compiled it."""
    facts = [(node, node.get_rt_info()) for node in compiled(graph).get_runtime_model().get_ops()]
    constants = [
        (prod(node.get_output_shape(0)), info["outputPrecisions"].astype(str))
        for node, info in facts
        if info["layerType"].astype(str) == "Const"
    ]
    assert constants
    return sum(4 * size for size, precision in constants if size >= SMALL and precision == "f32")
