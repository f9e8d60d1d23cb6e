"""The scheduler on OpenVINO: every request gets torch's tokens, alone, together with others, and in little memory."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from antiphon.accel.decoding.request import Request
from antiphon.accel.decoding.scheduler import Batch, scheduler_of
from antiphon.accel.drafting.acceptance_stats import AcceptanceStats
from antiphon.accel.drafting.budget import FixedBudget
from antiphon.accel.drafting.cost_model import CostModel, StepCost
from antiphon.accel.engines.protocol import Engine
from antiphon.accel.testing.tiny import VOCAB_SIZE
from tests.accel.adversarial_drafters import RandomTreeDrafter
from tests.accel.table_engine import GreedySampler, TableOutput

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install openvino")

from antiphon.accel.engines.openvino.engine import OpenVINOEngine
from antiphon.accel.engines.openvino.paged_memory import block_bytes
from tests.accel.openvino.builders import engine_of, model_of, text_of

MODEL: Any = model_of()
NEW = 30
FLAT = CostModel(StepCost({64: {1: 1.0, 64: 1.1}}), learns=False)
"""Additional rows cost almost nothing, so sharing forward passes is always faster."""


@pytest.fixture(scope="module")
def graph() -> Any:
    return engine_of(MODEL).graph


def truth_of(prompt: list[int]) -> list[int]:
    with torch.no_grad():
        ids = MODEL.generate(torch.tensor([prompt]), max_new_tokens=NEW, min_new_tokens=NEW, eos_token_id=None)
    tokens: list[int] = ids[0].tolist()
    return tokens


def engine_on(graph: Any, blocks: int) -> OpenVINOEngine:
    engine = OpenVINOEngine(graph, memory=blocks * block_bytes(graph.cache_shapes, "f32"))
    engine.acceptance_stats = AcceptanceStats(FLAT, FLAT)
    return engine


def request_of(engine: OpenVINOEngine, truth: list[int], seed: int) -> Request:
    """Return a request whose drafter proposes random trees around torch's tokens."""
    prompt = truth[:-NEW]
    sequence = engine.sequence(prompt, tenant=seed)
    return Request(
        sequence, RandomTreeDrafter(truth, seed, VOCAB_SIZE), GreedySampler(), TableOutput(prompt, NEW), FixedBudget(12)
    )


def test_the_engine_implements_the_protocol(graph: Any) -> None:
    engine: Engine = engine_on(graph, 4)
    assert engine.batch_cost is FLAT


def test_a_request_gets_the_tokens_of_torch(graph: Any) -> None:
    truth = truth_of(text_of(50))
    engine = engine_on(graph, 16)
    request = request_of(engine, truth, 0)
    steps = list(scheduler_of(engine).steps(request))
    assert request.output.tokens == truth
    assert len(steps) < NEW
    assert steps[0].prefilled == 50


@pytest.mark.parametrize("blocks", [64, 12])
def test_long_prompts_that_are_prefilled_together_get_the_tokens_of_torch(graph: Any, blocks: int) -> None:
    """The requests do not fit into 12 blocks together, so each is prefilled in a separate forward pass."""
    truths = [truth_of(text_of(length, seed)) for seed, length in enumerate((150, 200, 180))]
    engine = engine_on(graph, blocks)
    requests = [request_of(engine, truth, seed) for seed, truth in enumerate(truths)]
    first = scheduler_of(engine).advance(requests)
    assert not any(isinstance(step, Exception) for step in first)
    while unfinished := [request for request in requests if not request.output.finish]:
        scheduler_of(engine).advance(unfinished)
    assert [request.output.tokens for request in requests] == truths


@pytest.mark.parametrize("blocks", [64, 8])
def test_requests_of_several_threads_get_the_tokens_of_torch(graph: Any, blocks: int) -> None:
    """The requests do not fit into 8 blocks together, so the engine evicts sequences, which are prefilled again."""
    engine = engine_on(graph, blocks)
    truths = [truth_of(text_of(size, seed=size)) for size in (60, 45, 33, 70)]
    requests = [request_of(engine, truth, seed) for seed, truth in enumerate(truths)]
    with ThreadPoolExecutor(len(requests)) as pool:
        list(pool.map(lambda request: list(scheduler_of(engine).steps(request)), requests))
    assert [request.output.tokens for request in requests] == truths


def test_requests_of_a_batch_get_the_tokens_of_torch(graph: Any) -> None:
    engine = engine_on(graph, 64)
    truths = [truth_of(text_of(size, seed=size)) for size in (40, 12, 33)]
    requests = [request_of(engine, truth, seed) for seed, truth in enumerate(truths)]
    batch = Batch(scheduler_of(engine), size=2)
    for steps in [batch.add(request) for request in requests]:
        list(steps)
    assert [request.output.tokens for request in requests] == truths
