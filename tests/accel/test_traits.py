"""Traits of models: declared by their layers, confirmed by a self-test, cached per model."""

from typing import Any

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

from antiphon.accel.drafting.tree import AttentionSpan
from antiphon.accel.engines.torch.engine import traits_of
from tests.families.table import tiny_model


def test_attention_spans_are_those_of_the_config() -> None:
    assert traits_of(tiny_model("llama")).attention_spans == {"full_attention": AttentionSpan()}
    assert traits_of(tiny_model("mistral")).attention_spans == {"sliding_attention": AttentionSpan(window=12)}
    gemma = traits_of(tiny_model("gemma3"))
    assert gemma.attention_spans == {"sliding_attention": AttentionSpan(window=12), "full_attention": AttentionSpan()}
    assert gemma.first_layers == {"sliding_attention": 0, "full_attention": 1}
    assert gemma.layer_kinds == ("sliding_attention", "full_attention", "sliding_attention")
    assert gemma.state_kinds == ()


def test_layers_with_state_are_distinguished_from_attention_layers() -> None:
    mamba, zamba, lfm2 = (traits_of(tiny_model(family)) for family in ("mamba2", "zamba2", "lfm2"))
    assert (mamba.state_kinds, mamba.attention_spans) == (("linear_attention",), {})
    assert (zamba.state_kinds, zamba.attention_spans) == (("linear_attention", "hybrid"), {"hybrid": AttentionSpan()})
    assert (lfm2.state_kinds, lfm2.first_layers) == (("conv",), {"full_attention": 1})


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


def test_the_self_test_records_no_gradients() -> None:
    """In half precision, which also measures noise, and with gradients enabled, as they are by default."""
    model: Any = tiny_model()
    model.model.rotary_emb = Careless(model.model.rotary_emb)
    graphs: list[bool] = []
    model.register_forward_hook(lambda *_: graphs.append(torch.is_grad_enabled()))
    with torch.enable_grad():
        traits_of(model.to(torch.bfloat16))
    assert graphs
    assert not any(graphs)


def test_attention_without_masks_verifies_chains() -> None:
    model = tiny_model()
    model.config._attn_implementation = "flash_attention_2"
    from antiphon.accel.engines.torch.traits import declared_traits

    traits = declared_traits(model)
    assert traits.level == "linear"
    assert "attn_implementation='sdpa'" in traits.reason


def test_a_model_that_is_not_causal_has_no_traits() -> None:
    config = T5Config(vocab_size=64, d_model=16, d_ff=16, d_kv=8, num_layers=1, num_heads=2)
    with pytest.raises(ValueError, match="T5ForConditionalGeneration is not a causal language model"):
        traits_of(T5ForConditionalGeneration(config).eval())
