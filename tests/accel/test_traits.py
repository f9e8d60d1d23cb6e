"""What a model can verify: told by its layers, confirmed by numbers, remembered per model."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, T5Config, T5ForConditionalGeneration

from antiphon.accel.adversary import Thicket
from antiphon.accel.generate import generate
from antiphon.accel.probe import traits_of
from antiphon.accel.stats import Step
from antiphon.accel.tiny import FAMILIES, VOCABULARY, tiny_model
from antiphon.accel.tree import Reach

OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bloom": ("linear", {"hidden_size": 64, "n_layer": 2, "n_head": 4}),
    "gpt_neo": ("linear", {
        "hidden_size": 64, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]],
        "window_size": 16,
    }),
    "mamba2": ("replay", {
        "hidden_size": 64, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1,
        "chunk_size": 16,
    }),
    "recurrent_gemma": ("plain", {
        "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "lru_width": 64,
        "attention_window_size": 64, "intermediate_size": 96,
    }),
}  # fmt: skip


def other_model(family: str) -> Any:
    config = AutoConfig.for_model(
        family, vocab_size=VOCABULARY, initializer_range=0.08, pad_token_id=0, bos_token_id=1, **OTHERS[family][1]
    )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_models_verify_trees(family: str) -> None:
    traits = traits_of(tiny_model(family))
    assert traits.level == "tree", traits.reason


@pytest.mark.parametrize("family", OTHERS)
def test_other_models_verify_what_they_can_and_say_why(family: str) -> None:
    model = other_model(family)
    traits = traits_of(model)
    assert traits.level == OTHERS[family][0], traits.reason
    assert len(traits.reason) > 20
    prompt = torch.randint(1, 250, (1, 40), generator=torch.Generator().manual_seed(3))
    options: dict[str, Any] = {"max_new_tokens": 40, "do_sample": False, "eos_token_id": None, "use_cache": True}
    expected = model.generate(prompt, **options)
    steps: list[Step] = []
    text = expected[0].tolist()
    output = generate(model, prompt, drafter=lambda: Thicket(text, 5, VOCABULARY), on_step=steps.append, **options)
    assert output.tolist() == expected.tolist()  # type: ignore[union-attr]
    assert (len(steps) < 40) == (traits.level != "plain")


def test_each_kind_of_layer_reaches_as_far_as_its_config_says() -> None:
    assert traits_of(tiny_model("llama")).reaches == {"full_attention": Reach()}
    assert traits_of(tiny_model("mistral")).reaches == {"sliding_attention": Reach(window=12)}
    gemma = traits_of(tiny_model("gemma3"))
    assert gemma.reaches == {"sliding_attention": Reach(window=12), "full_attention": Reach()}
    assert gemma.first == {"sliding_attention": 0, "full_attention": 1}


def test_the_verdict_is_found_once_per_model_and_attention() -> None:
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
    """Rotary embeddings that ignore the positions they are given: a wrong model, right in every plain forward."""

    def __init__(self, rotary: torch.nn.Module) -> None:
        super().__init__()
        self.rotary = rotary
        self.seen = 0

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        start = int(position_ids[0, 0])
        return self.rotary(x, torch.arange(start, start + position_ids.shape[1])[None])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_ignores_positions_is_caught_by_the_numbers(dtype: torch.dtype) -> None:
    model: Any = tiny_model()
    model.to(dtype)
    model.model.rotary_emb = Careless(model.model.rotary_emb)
    traits = traits_of(model)
    assert traits.level == "linear"
    assert "numeric probe" in traits.reason


def test_attention_that_takes_no_masks_verifies_chains() -> None:
    model = tiny_model()
    model.config._attn_implementation = "flash_attention_2"
    from antiphon.accel.traits import declared

    traits = declared(model)
    assert traits.level == "linear"
    assert "attn_implementation='sdpa'" in traits.reason


def test_a_model_that_is_no_causal_language_model_is_refused() -> None:
    config = T5Config(vocab_size=64, d_model=16, d_ff=16, d_kv=8, num_layers=1, num_heads=2)
    with pytest.raises(ValueError, match="T5ForConditionalGeneration is not a causal language model"):
        traits_of(T5ForConditionalGeneration(config).eval())
