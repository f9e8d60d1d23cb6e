"""A diagnosis names what the model can do, why, and what would help."""

import json
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from antiphon.accel.drafting.tree import AttentionSpan
from antiphon.accel.engines.torch.traits import RopeSwitch
from antiphon.accel.testing.model_report import LayerKind, ModelReport, inspect_model
from antiphon.accel.testing.tiny import tiny_model


def of(family: str) -> ModelReport:
    return inspect_model(tiny_model(family))


def test_the_facts_are_those_of_the_model() -> None:
    found = of("gemma3")
    assert (found.model, found.family, found.dtype, found.device) == (
        "Gemma3ForCausalLM",
        "gemma3_text",
        "float32",
        "cpu",
    )
    assert found.parameters == sum(each.numel() for each in tiny_model("gemma3").parameters())
    assert (found.level, found.attention, found.positions, found.groups) == ("tree", "sdpa", 512, 2)
    assert found.mask == "2 boolean masks, by kind of layer"
    assert found.layers == (
        LayerKind("sliding_attention", 2, AttentionSpan(window=12), state=False),
        LayerKind("full_attention", 1, AttentionSpan(), state=False),
    )
    assert str(found.layers[0]) == "2 sliding_attention: looks back 12 tokens"
    assert list(found.cost.seconds) == [64, 406]
    assert found.advice == ()


def test_a_diagnosis_is_one_object_of_json() -> None:
    found = json.loads(json.dumps(of("phi3-longrope").as_dict()))
    assert found["level"] == "tree"
    assert found["rope"] == {"position": 52, "dynamic": False, "rebuilds": True}
    assert found["layers"] == [
        {"name": "full_attention", "layers": 2, "reach": {"window": None, "chunk": None}, "state": False}
    ]
    assert found["cost"]["1"]["rows"][0] == 1


def test_layers_say_whether_they_look_back_or_keep_state_or_both() -> None:
    state = "keeps recurrent or convolutional state"
    assert [str(kind) for kind in of("zamba2").layers] == [
        f"2 linear_attention: {state}",
        f"1 hybrid: looks back to the start, {state}",
    ]
    assert str(LayerKind("mlp", 3, None, state=False)) == "3 mlp: keeps nothing"
    assert str(of("llama4").layers[0]) == "2 chunked_attention: looks back to the start of its chunk of 16"


def test_query_heads_are_counted_against_the_keys_in_the_cache() -> None:
    assert [of(family).groups for family in ("gpt2", "llama", "gpt_bigcode", "mamba2")] == [1, 2, 4, None]


def test_packing_is_named_where_it_helps_and_the_reason_where_it_does_not() -> None:
    assert of("llama").packing == ""
    assert "of its own" in of("gpt2").packing


def test_what_stands_in_the_way_of_compiled_steps_is_named() -> None:
    assert of("llama").compiling == ""
    assert "not all of its layers look back to the start (sliding_attention, full_attention)" in of("gemma3").compiling
    assert "verifies no trees" in of("bloom").compiling
    assert "rotary" in of("llama-dynamic").compiling


def test_masks_are_named_by_what_attention_takes() -> None:
    assert of("gptj").mask == "one additive mask"
    assert of("bloom").mask == "none: only chains are drafted"
    assert of("mamba").mask == "none: nothing is drafted"


def test_advice_is_for_what_holds_a_model_back() -> None:
    assert "drafter 'nothing'" in of("mamba").advice[0]
    assert "second forward" in of("mamba2").advice[0]
    dynamic = of("llama-dynamic")
    assert dynamic.rope == RopeSwitch(52, dynamic=True)
    assert "within 52 tokens" in dynamic.advice[0]
    half: Any = tiny_model()
    assert "float32" in inspect_model(half.to(torch.bfloat16)).advice[0]


def test_a_model_in_training_mode_is_told_to_be_evaluated() -> None:
    found = inspect_model(tiny_model().train())
    assert found.level == "plain"
    assert found.advice == ("Call model.eval(): in training mode nothing can be verified.",)


def test_attention_that_takes_no_mask_is_told_what_to_load() -> None:
    AttentionInterface.register("foreign", sdpa_attention_forward)
    AttentionMaskInterface.register("foreign", sdpa_mask)
    found = inspect_model(tiny_model(attn_implementation="foreign"))
    assert (found.level, found.mask) == ("linear", "none: only chains are drafted")
    assert "attn_implementation='sdpa'" in found.advice[0]
