"""Unsupported options are refused by name before anything is decoded."""

from typing import Any

import pytest
import torch
from transformers import DynamicCache

from antiphon.accel.drafting.draft import EMPTY, Draft
from antiphon.accel.engines.torch.engine import traits_of
from antiphon.accel.engines.torch.sequence import TorchSequence
from antiphon.accel.generate import Decoder, generate
from tests.tiny import byte_tokenizer, tiny_model

PROMPT = torch.randint(1, 250, (1, 40), generator=torch.Generator().manual_seed(3))

REFUSED: dict[str, dict[str, Any]] = {
    "num_beams=2": {"num_beams": 2},
    "use_cache=False": {"use_cache": False},
    "output_attentions": {"output_attentions": True, "return_dict_in_generate": True},
    "output_hidden_states": {"output_hidden_states": True, "return_dict_in_generate": True},
    "a StaticCache for 3 sequences": {"num_return_sequences": 3, "do_sample": True, "cache_implementation": "static"},
    "num_beam_groups=2": {"num_beam_groups": 2},
    "penalty_alpha=0.6 without sampling .contrastive search.": {"penalty_alpha": 0.6, "top_k": 4},
    "constraints": {"constraints": [1]},
    "force_words_ids": {"force_words_ids": [[1]]},
    "dola_layers": {"dola_layers": "low"},
    "position_ids of your own": {"position_ids": torch.arange(7, 47)[None]},
    "prompt_lookup_num_tokens; its drafts come from drafter= and references=": {"prompt_lookup_num_tokens": 5},
    "assistant_early_exit; its drafts": {"assistant_early_exit": 1},
    "use_mtp; its drafts": {"use_mtp": True},
    "speculation_type; its drafts": {"speculation_type": "dflash"},
    "output_router_logits": {"output_router_logits": True},
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_options_are_refused_by_name(name: str) -> None:
    model = tiny_model(attn_implementation="eager")
    with pytest.raises(ValueError, match=name):
        generate(model, PROMPT, max_new_tokens=4, **REFUSED[name])
    with pytest.raises(ValueError, match=name):
        model.generate(PROMPT, custom_generate=Decoder(), max_new_tokens=4, **REFUSED[name])  # type: ignore[operator]


# Options that transformers handles or rejects before it calls a custom decoder: `prepare` has to refuse them.
UNHEARD: dict[str, dict[str, Any]] = {
    "assistant_model; its drafts come from drafter= and references=": {"assistant_model": tiny_model()},
    "assistant_tokenizer": {"assistant_tokenizer": byte_tokenizer()},
    "synced_gpus": {"synced_gpus": True},
    "custom_generate": {"custom_generate": "somebody/decoder"},
    "token_healing": {"token_healing": True, "tokenizer": byte_tokenizer()},
    "cache_implementation='paged'": {"cache_implementation": "paged"},
}


@pytest.mark.parametrize("name", UNHEARD)
def test_options_that_generate_does_not_pass_on_are_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"does not offer {name}"):
        generate(tiny_model(), PROMPT, max_new_tokens=4, **UNHEARD[name])


@pytest.mark.parametrize("padding", [0, 5])
def test_default_positions_are_accepted(padding: int) -> None:
    model = tiny_model(seed=11)
    mask = torch.ones_like(PROMPT)
    mask[:, :padding] = 0
    options: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    positions = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 1)
    expected = model.generate(PROMPT, position_ids=positions, **options)  # type: ignore[operator]
    output = generate(model, PROMPT, position_ids=positions, **options)
    assert output.tolist() == expected.tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("references", "error", "message"),
    [
        ("one text", TypeError, "pass a list of texts"),
        (["a text"], ValueError, "pass tokenizer="),
        ([3.5], TypeError, "Reference 0 is a float"),
        ([[1, 2], None], TypeError, "Reference 1 is a NoneType"),
        ([[1, 2, 999]], ValueError, "Reference 0 has token id 999"),
    ],
)
def test_an_invalid_reference_is_named(references: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        generate(tiny_model(seed=11), PROMPT, references=references, max_new_tokens=2)


def test_a_cache_that_holds_the_whole_prompt_is_refused() -> None:
    model = tiny_model(seed=11)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(PROMPT, past_key_values=cache)
    with pytest.raises(ValueError, match="already holds 40 tokens"):
        generate(model, PROMPT, past_key_values=cache, max_new_tokens=4)


def test_a_model_in_training_mode_is_decoded_plainly_and_says_why() -> None:
    model = tiny_model(seed=11)
    assert traits_of(model).level == "tree"
    model.train()
    assert traits_of(model).level == "plain"
    assert "model.eval()" in traits_of(model).reason
    assert TorchSequence(model, traits_of(model)).fit(Draft((1,), (-1,), (1.0,)), 8, 8) == EMPTY
