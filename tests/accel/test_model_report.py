"""Traits of models, found from configuration and self-test, and the report of `antiphon doctor`."""

from typing import Any

import pytest
import torch

from antiphon.accel.drafting.tree import AttentionSpan
from antiphon.accel.engines.torch.engine import traits_of
from antiphon.accel.engines.torch.traits import RopeSwitch
from antiphon.accel.model_report import LayerKind, ModelReport, inspect_model
from tests.families.table import tiny_model


def of(family: str) -> ModelReport:
    return inspect_model(tiny_model(family))


def test_the_report_describes_the_model() -> None:
    found = of("gemma3")
    assert (found.model, found.family, found.dtype, found.device) == (
        "Gemma3ForCausalLM",
        "gemma3_text",
        "float32",
        "cpu",
    )
    assert found.parameters == sum(each.numel() for each in tiny_model("gemma3").parameters())
    assert (found.level, found.attention, found.max_positions) == ("tree", "sdpa", 512)
    assert found.mask == "2 boolean masks, by kind of layer"
    assert found.layers == (
        LayerKind("sliding_attention", 2, AttentionSpan(window=12), state=False),
        LayerKind("full_attention", 1, AttentionSpan(), state=False),
    )
    assert str(found.layers[0]) == "2 sliding_attention: looks back 12 tokens"
    assert list(found.cost.seconds) == [64, 406]
    assert found.advice == ()


def test_the_reason_against_compiled_steps_is_reported() -> None:
    assert of("llama").compiling_reason == ""
    assert (
        "not all of its layers look back to the start (sliding_attention, full_attention)"
        in of("gemma3").compiling_reason
    )
    assert "verifies no trees" in of("bloom").compiling_reason
    assert "rotary" in of("llama-dynamic").compiling_reason


def test_advice_addresses_the_limits_of_a_model() -> None:
    assert "drafter 'nothing'" in of("mamba").advice[0]
    assert "second forward pass" in of("kimi_linear").advice[0]
    assert not of("mamba2").advice
    dynamic = of("llama-dynamic")
    assert dynamic.rope == RopeSwitch(52, dynamic=True)
    assert "within 52 tokens" in dynamic.advice[0]
    half: Any = tiny_model()
    assert "float32" in inspect_model(half.to(torch.bfloat16)).advice[0]


def test_attention_spans_are_those_of_the_config() -> None:
    assert traits_of(tiny_model("llama")).attention_spans == {"full_attention": AttentionSpan()}
    assert traits_of(tiny_model("mistral")).attention_spans == {"sliding_attention": AttentionSpan(window=12)}
    gemma = traits_of(tiny_model("gemma3"))
    assert gemma.attention_spans == {"sliding_attention": AttentionSpan(window=12), "full_attention": AttentionSpan()}
    assert gemma.first_layers == {"sliding_attention": 0, "full_attention": 1}
    assert gemma.layer_kinds == ("sliding_attention", "full_attention", "sliding_attention")
    assert gemma.state_kinds == ()


def test_the_self_test_runs_once_per_model_and_attention() -> None:
    model = tiny_model()
    forwards: list[int] = []
    model.register_forward_hook(lambda *_: forwards.append(1))
    first = traits_of(model)
    probed = len(forwards)
    assert probed > 0
    assert traits_of(model) is first
    assert len(forwards) == probed
    model.set_attn_implementation("eager")
    assert traits_of(model) is not first
    assert len(forwards) > probed


class Careless(torch.nn.Module):
    """Rotary embeddings that ignore ``position_ids``: wrong for trees, right in every plain forward pass."""

    def __init__(self, rotary: torch.nn.Module) -> None:
        super().__init__()
        self.rotary = rotary
        self.seen = 0

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        start = int(position_ids[0, 0])
        return self.rotary(x, torch.arange(start, start + position_ids.shape[1])[None])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_self_test_detects_a_model_that_ignores_positions(dtype: torch.dtype) -> None:
    model: Any = tiny_model()
    model.to(dtype)
    model.model.rotary_emb = Careless(model.model.rotary_emb)
    traits = traits_of(model)
    assert traits.level == "linear"
    assert "self-test" in traits.reason
