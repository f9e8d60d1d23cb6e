"""The model report of `antiphon doctor`: verification level, reasons and advice."""

from typing import Any

import torch

from antiphon.accel.drafting.tree import AttentionSpan
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
    assert (found.level, found.attention, found.max_positions, found.queries_per_key_head) == ("tree", "sdpa", 512, 2)
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
