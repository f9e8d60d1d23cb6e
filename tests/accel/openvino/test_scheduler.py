"""The one loop on OpenVINO: every text is what torch says, alone, beside others, and where memory is short."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from antiphon.accel.decoding.batch import Batch
from antiphon.accel.decoding.scheduler import scheduler_of
from antiphon.accel.decoding.running_request import RunningRequest
from antiphon.accel.drafting.budget import FixedBudget
from antiphon.accel.drafting.acceptance_stats import AcceptanceStats
from antiphon.accel.drafting.cost_model import FixedCostModel
from antiphon.accel.drafting.cost_model import StepCost
from antiphon.accel.engines.protocol import Engine
from antiphon.accel.testing.drafters import RandomTreeDrafter
from antiphon.accel.testing.table_engine import GreedySampler, TableOutput
from antiphon.accel.testing.tiny import VOCABULARY

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install 'antiphon[openvino]'")

from antiphon.accel.engines.openvino.engine import OpenVINOEngine
from antiphon.accel.engines.openvino.paged_memory import block_bytes
from tests.accel.openvino.builders import engine_of, model_of, text_of

MODEL: Any = model_of()
NEW = 30
FLAT = FixedCostModel(StepCost({64: {1: 1.0, 64: 1.1}}))
"""Rows cost next to nothing: sharing always pays."""


@pytest.fixture(scope="module")
def graph() -> Any:
    return engine_of(MODEL).graph


def truth_of(prompt: list[int]) -> list[int]:
    with torch.no_grad():
        ids = MODEL.generate(torch.tensor([prompt]), max_new_tokens=NEW, min_new_tokens=NEW, eos_token_id=None)
    tokens: list[int] = ids[0].tolist()
    return tokens


def engine_on(graph: Any, blocks: int) -> OpenVINOEngine:
    engine = OpenVINOEngine(graph, memory=blocks * block_bytes(graph.heads, "f32"))
    engine.acceptance_stats = AcceptanceStats(FLAT, FLAT)
    return engine


def decoded(engine: OpenVINOEngine, truth: list[int], seed: int) -> RunningRequest:
    """A text with drafts from a tree_drafter around what torch says."""
    prompt = truth[:-NEW]
    sequence = engine.sequence(prompt, tenant=seed)
    return RunningRequest(sequence, RandomTreeDrafter(truth, seed, VOCABULARY), GreedySampler(), TableOutput(prompt, NEW), FixedBudget(12))


def test_the_engine_is_one_of_the_protocol(graph: Any) -> None:
    engine: Engine = engine_on(graph, 4)
    assert engine.batch_cost is FLAT


def test_a_text_is_what_torch_says(graph: Any) -> None:
    truth = truth_of(text_of(50))
    engine = engine_on(graph, 16)
    text = decoded(engine, truth, 0)
    steps = list(scheduler_of(engine).steps(text))
    assert text.ending.tokens == truth
    assert len(steps) < NEW
    assert steps[0].prefilled == 50


@pytest.mark.parametrize("blocks", [64, 12])
def test_long_prompts_that_are_read_at_once_are_what_torch_says(graph: Any, blocks: int) -> None:
    """With 12 blocks they do not fit at once: each is then read by itself."""
    truths = [truth_of(text_of(length, seed)) for seed, length in enumerate((150, 200, 180))]
    engine = engine_on(graph, blocks)
    texts = [decoded(engine, truth, seed) for seed, truth in enumerate(truths)]
    first = scheduler_of(engine).advance(texts)
    assert not any(isinstance(step, Exception) for step in first)
    while going := [text for text in texts if not text.ending.finish]:
        scheduler_of(engine).advance(going)
    assert [text.ending.tokens for text in texts] == truths


@pytest.mark.parametrize("blocks", [64, 8])
def test_texts_of_several_threads_say_what_each_says_alone(graph: Any, blocks: int) -> None:
    """With 8 blocks they do not fit at once: they take them from each other, and read their texts again."""
    engine = engine_on(graph, blocks)
    truths = [truth_of(text_of(size, seed=size)) for size in (60, 45, 33, 70)]
    texts = [decoded(engine, truth, seed) for seed, truth in enumerate(truths)]
    with ThreadPoolExecutor(len(texts)) as pool:
        list(pool.map(lambda text: list(scheduler_of(engine).steps(text)), texts))
    assert [text.ending.tokens for text in texts] == truths


def test_a_batch_says_what_each_text_says_alone(graph: Any) -> None:
    engine = engine_on(graph, 64)
    truths = [truth_of(text_of(size, seed=size)) for size in (40, 12, 33)]
    texts = [decoded(engine, truth, seed) for seed, truth in enumerate(truths)]
    batch = Batch(scheduler_of(engine), size=2)
    for steps in [batch.add(text) for text in texts]:
        list(steps)
    assert [text.ending.tokens for text in texts] == truths
