"""The model report of `antiphon doctor`: verification level, reasons and advice."""

import json
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

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


def test_the_report_can_be_written_as_json() -> None:
    found = json.loads(json.dumps(of("phi3-longrope").as_dict()))
    assert found["level"] == "tree"
    assert found["rope"] == {"position": 52, "dynamic": False, "rebuilds": True}
    assert found["layers"] == [
        {"name": "full_attention", "layers": 2, "span": {"window": None, "chunk": None}, "state": False}
    ]
    assert found["cost"]["1"]["rows"][0] == 1


def test_layers_are_described_by_attention_span_and_state() -> None:
    state = "keeps recurrent or convolutional state"
    assert [str(kind) for kind in of("zamba2").layers] == [
        f"2 linear_attention: {state}",
        f"1 hybrid: looks back to the start, {state}",
    ]
    assert str(LayerKind("mlp", 3, None, state=False)) == "3 mlp: keeps nothing"
    assert str(of("llama4").layers[0]) == "2 chunked_attention: looks back to the start of its chunk of 16"


def test_query_heads_are_counted_per_key_head() -> None:
    assert [of(family).queries_per_key_head for family in ("gpt2", "llama", "gpt_bigcode", "mamba2")] == [1, 2, 4, None]


def test_the_reason_against_packing_is_reported() -> None:
    assert of("llama").packing_reason == ""
    assert "of its own" in of("gpt2").packing_reason


def test_the_reason_against_compiled_steps_is_reported() -> None:
    assert of("llama").compiling_reason == ""
    assert (
        "not all of its layers look back to the start (sliding_attention, full_attention)"
        in of("gemma3").compiling_reason
    )
    assert "verifies no trees" in of("bloom").compiling_reason
    assert "rotary" in of("llama-dynamic").compiling_reason


def test_masks_are_described() -> None:
    assert of("gptj").mask == "one additive mask"
    assert of("bloom").mask == "none: only chains are drafted"
    assert of("mamba").mask == "none: nothing is drafted"


def test_advice_addresses_the_limits_of_a_model() -> None:
    assert "drafter 'nothing'" in of("mamba").advice[0]
    assert "second forward pass" in of("mamba2").advice[0]
    dynamic = of("llama-dynamic")
    assert dynamic.rope == RopeSwitch(52, dynamic=True)
    assert "within 52 tokens" in dynamic.advice[0]
    half: Any = tiny_model()
    assert "float32" in inspect_model(half.to(torch.bfloat16)).advice[0]


def test_advice_for_a_model_in_training_mode() -> None:
    found = inspect_model(tiny_model().train())
    assert found.level == "plain"
    assert found.advice == ("Call model.eval(): no draft is verified in training mode.",)


def test_advice_for_attention_without_masks() -> None:
    AttentionInterface.register("foreign", sdpa_attention_forward)
    AttentionMaskInterface.register("foreign", sdpa_mask)
    found = inspect_model(tiny_model(attn_implementation="foreign"))
    assert (found.level, found.mask) == ("linear", "none: only chains are drafted")
    assert "attn_implementation='sdpa'" in found.advice[0]
