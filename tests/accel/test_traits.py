"""Traits of models: declared by their layers, confirmed by a self-test, cached per model."""

from typing import Any

import pytest
import torch

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
