"""What the engine does not do, it refuses by name before anything is decoded."""

from typing import Any

import pytest
import torch
from transformers import DynamicCache

from antiphon.accel.cache import CachedModel
from antiphon.accel.draft import EMPTY, Draft
from antiphon.accel.generate import Decoder, generate
from antiphon.accel.probe import traits_of
from antiphon.accel.tiny import tiny_model

PROMPT = torch.randint(1, 250, (1, 40), generator=torch.Generator().manual_seed(3))

REFUSED: dict[str, dict[str, Any]] = {
    "num_beams=2": {"num_beams": 2},
    "use_cache=False": {"use_cache": False},
    "output_attentions": {"output_attentions": True, "return_dict_in_generate": True},
    "output_hidden_states": {"output_hidden_states": True, "return_dict_in_generate": True},
    "a StaticCache for 3 sequences": {"num_return_sequences": 3, "do_sample": True, "cache_implementation": "static"},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_this_decoder_does_not_offer_is_refused_by_name(name: str) -> None:
    model = tiny_model(attn_implementation="eager")
    with pytest.raises(ValueError, match=name):
        generate(model, PROMPT, max_new_tokens=4, **REFUSED[name])
    with pytest.raises(ValueError, match=name):
        model.generate(PROMPT, custom_generate=Decoder(), max_new_tokens=4, **REFUSED[name])  # type: ignore[operator]


def test_embeddings_instead_of_tokens_are_refused_by_name() -> None:
    model = tiny_model(seed=11)
    embeddings = model.get_input_embeddings()(PROMPT)
    with pytest.raises(ValueError, match="inputs_embeds"):
        model.generate(inputs_embeds=embeddings, custom_generate=Decoder(), max_new_tokens=4)  # type: ignore[operator]


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
def test_a_reference_that_is_no_text_is_named(references: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        generate(tiny_model(seed=11), PROMPT, references=references, max_new_tokens=2)


@pytest.mark.parametrize("rows", [-1, 2.5, "many"])
def test_rows_out_of_range_are_refused(rows: Any) -> None:
    with pytest.raises(ValueError, match="rows is"):
        Decoder(rows=rows)


def test_stop_strings_need_a_tokenizer() -> None:
    with pytest.raises(ValueError, match="pass tokenizer="):
        generate(tiny_model(seed=11), PROMPT, stop_strings=["x"], max_new_tokens=2)


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
    assert CachedModel(model, traits_of(model)).fit(Draft((1,), (-1,), (1.0,)), 8, 8) == EMPTY
