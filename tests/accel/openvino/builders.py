"""Engines of tiny models, and what their forwards are held against. Knows torch alone as the truth."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor

from antiphon.accel.drafting.draft import EMPTY, ROOT, Draft, Logits, path_to
from antiphon.accel.engines.protocol import SequenceInput
from antiphon.accel.engines.torch.traits import declared_traits
from antiphon.accel.testing.tiny import tiny_model
from tests.accel.oracles import ATOL, RTOL, plain_logits

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install 'antiphon[openvino]'")

from antiphon.accel.engines.openvino.conversion import paged_model, windows_of
from antiphon.accel.engines.openvino.engine import OpenVINOEngine
from antiphon.accel.engines.openvino.graph import PagedGraph
from antiphon.accel.engines.openvino.sequence import PagedSequence
from antiphon.accel.engines.openvino.store import stored

BRANCHES = (ROOT, ROOT, 1, 0, 2)
"""Two branches that lie across each other: no row's depth equals its slot."""

MEMORY = 2**22


@cache
def model_of(family: str = "llama", seed: int = 0) -> Any:
    """A tiny model, the same one for all tests that leave it as it is."""
    return tiny_model(family, seed=seed)


@cache
def graph_of(model: Any) -> Any:
    """The converted model, as it comes back from a file; converted once."""
    with TemporaryDirectory() as folder:
        return stored(Path(folder) / "model", lambda: paged_model(model, declared_traits(model)))


def engine_of(model: Any, *, memory: int = MEMORY, chunk: int = 512, precision: str = "f32") -> OpenVINOEngine:
    traits = declared_traits(model)
    windows = [window for window in windows_of(traits) if window]
    graph = PagedGraph(graph_of(model), precision=precision, threads=1)
    return OpenVINOEngine(
        graph, memory=memory, window=min(windows, default=None), positions=traits.max_positions, chunk=chunk
    )


def text_of(size: int, seed: int = 0) -> list[int]:
    tokens: list[int] = torch.randint(1, 250, (size,), generator=torch.Generator().manual_seed(seed)).tolist()
    return tokens


def tree_of(tokens: Sequence[int]) -> Draft:
    return Draft(tuple(tokens[: len(BRANCHES)]), BRANCHES, (1.0,) * len(BRANCHES))


def step(engine: OpenVINOEngine, sequence: PagedSequence, text: Sequence[int], draft: Draft = EMPTY) -> Logits:
    """One forward of whatever of the text is not held, with a draft."""
    return engine.forward([SequenceInput(sequence, text[sequence.length :], draft)])[0]


def expect_plain(model: Any, text: Sequence[int], draft: Draft, logits: Logits) -> None:
    """The logits after the text and after every row of the draft are those of plain forwards in torch."""
    assert len(logits) == 1 + len(draft)
    for row in range(-1, len(draft)):
        path = path_to(draft, row)
        truth = plain_logits(model, [*text, *(draft.tokens[each] for each in path)])[-1]
        close(logits.tensor()[row + 1], truth)


def close(logits: Tensor, truth: Tensor) -> None:
    torch.testing.assert_close(logits, truth, atol=ATOL, rtol=RTOL)


def in_precision(model: Any, dtype: torch.dtype) -> Any:
    """The model in another precision."""
    return model.to(dtype)
