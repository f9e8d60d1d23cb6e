"""Costs of compiled steps, and how a GPU's settings and state survive a forward pass and a refused request."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from antiphon.accel.drafting.cost_model import StepCost
from antiphon.accel.engines.torch.attention import varying_shapes
from antiphon.accel.engines.torch.compiled_sequence import CompiledSequence, CompiledSteps, cost_by_bucket
from antiphon.accel.engines.torch.cost_measurement import measure_step_cost
from antiphon.accel.engines.torch.engine import engine_of
from antiphon.accel.engines.torch.sequence import TorchSequence
from antiphon.accel.generate import generate
from antiphon.accel.testing.tiny import VOCAB_SIZE, tiny_model

PROMPT = torch.tensor([[5, 6, 7, 8]])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_request_that_allows_no_token_leaves_the_gpu_usable() -> None:
    model: Any = tiny_model(seed=11).to("cuda")  # type: ignore[arg-type]
    options: dict[str, Any] = {"max_new_tokens": 4, "do_sample": True, "eos_token_id": None}
    with pytest.raises(RuntimeError, match="every token is forbidden"):
        generate(model, PROMPT.to("cuda"), suppress_tokens=list(range(VOCAB_SIZE)), **options)
    assert generate(model, PROMPT.to("cuda"), **options).shape[1] == PROMPT.shape[1] + 4  # type: ignore[union-attr]


def test_a_step_costs_as_much_as_the_bucket_that_it_is_padded_to() -> None:
    cost = cost_by_bucket(StepCost({64: {1: 4.0, 4: 5.0, 8: 6.0}}))
    assert cost.curve(64, 8).tolist() == [4.0, 5.0, 5.0, 5.0, 6.0, 6.0, 6.0, 6.0]
    assert cost.curve(64, 16)[-1] == pytest.approx(8.0), "beyond the last bucket it rises"


def test_the_cost_of_compiled_steps_is_measured_on_compiled_steps() -> None:
    model = tiny_model(seed=11)
    engine = engine_of(model)
    engine.compiled_steps = CompiledSteps(backend="eager")
    made: list[CompiledSequence] = []

    def compiled(plain: TorchSequence) -> CompiledSequence:
        made.append(CompiledSequence(plain, engine.compiled_steps, compiles=True))
        return made[-1]

    make = partial(TorchSequence, model, engine.traits)
    cost = measure_step_cost(make, rows=(1, 4), contexts=(20, 90), seconds=60, steps_of=compiled)
    assert {context: list(rows) for context, rows in cost.seconds.items()} == {20: [1, 4], 90: [1, 4]}
    assert all(each.argmax is not None for each in made)
    assert not engine.compiled_steps.failure


def test_steps_of_varying_length_do_not_use_attention_that_is_planned_for_each_length() -> None:
    enabled: Callable[[], bool] = torch.backends.cuda.cudnn_sdp_enabled
    assert enabled()
    with varying_shapes(SimpleNamespace(device=torch.device("cuda"))):  # type: ignore[arg-type]
        assert not enabled()
        with varying_shapes(SimpleNamespace(device=torch.device("cuda"))):  # type: ignore[arg-type]
            assert not enabled()
    with varying_shapes(tiny_model()):
        assert enabled()
