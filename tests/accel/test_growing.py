"""The growing cache: a `DynamicCache` in all it holds, written in place."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from antiphon.accel.growing import SMALLEST, GrowingCache, GrowingLayer
from antiphon.accel.tiny import tiny_model

PROMPT = torch.randint(1, 250, (1, 40), generator=torch.Generator().manual_seed(3))


def states(tokens: int, batch: int = 2, start: int = 0) -> tuple[Tensor, Tensor]:
    """Keys and values of shape (batch, 2, tokens, 4), all numbers different."""
    keys = torch.arange(start, start + batch * 2 * tokens * 4, dtype=torch.float32).reshape(batch, 2, tokens, 4)
    return keys, -keys


def filled(layer: Any, tokens: int = 5) -> Any:
    layer.update(*states(tokens))
    return layer


def expect_same(mine: Any, other: Any) -> None:
    assert mine.get_seq_length() == other.get_seq_length()
    assert mine.get_mask_sizes(3) == other.get_mask_sizes(3)
    torch.testing.assert_close(mine.keys, other.keys)
    torch.testing.assert_close(mine.values, other.values)


def test_tokens_are_written_in_place_until_the_buffer_has_doubled_into_a_new_one() -> None:
    layer = filled(GrowingLayer(), SMALLEST)
    homes = []
    for token in range(3 * SMALLEST):
        layer.update(*states(1, start=token))
        homes.append(layer.keys.data_ptr())
    assert len(set(homes)) == 2
    assert homes.index(homes[-1]) == SMALLEST  # the first buffer held twice the first tokens
    assert layer.keys.untyped_storage().size() <= 2 * layer.keys.numel() * 4


CHANGES: dict[str, Callable[[Any], object]] = {
    "nothing": lambda layer: None,
    "crop": lambda layer: layer.crop(-3),
    "crop to nothing": lambda layer: layer.crop(-5),
    "reorder": lambda layer: layer.reorder_cache(torch.tensor([1, 0])),
    "repeat": lambda layer: layer.batch_repeat_interleave(3),
    "select": lambda layer: layer.batch_select_indices(torch.tensor([1])),
    "reset": lambda layer: layer.reset(),
    "keys of somebody else": lambda layer: vars(layer).update(keys=layer.keys[:, :, 1:], values=layer.values[:, :, 1:]),
    "every other key": lambda layer: vars(layer).update(keys=layer.keys[:, :, ::2], values=layer.values[:, :, ::2]),
    "the first row alone": lambda layer: vars(layer).update(keys=layer.keys[:1], values=layer.values[:1]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_others_do_to_a_layer_is_respected(change: str) -> None:
    layers = [filled(GrowingLayer()), filled(DynamicCache(config=tiny_model().config).layers[0])]
    for layer in layers:
        CHANGES[change](layer)
        batch = 2 if change == "reset" or layer.keys is None else layer.keys.shape[0]
        for start in (100, 200):
            layer.update(*states(2, batch, start))
    expect_same(*layers)


def test_a_copy_goes_on_without_the_original() -> None:
    layer = filled(GrowingLayer())
    other = copy.deepcopy(layer)
    layer.update(*states(2, start=100))
    other.update(*states(2, start=200))
    assert layer.keys[0, 0, 5, 0] == 100
    assert other.keys[0, 0, 5, 0] == 200


@pytest.mark.parametrize("family", ["llama", "gemma3", "mistral"])
@pytest.mark.parametrize(
    "options",
    [{}, {"num_beams": 3}, {"do_sample": True, "num_return_sequences": 3}, {"prompt_lookup_num_tokens": 5}],
    ids=["greedy", "beams", "batch", "prompt lookup"],
)
def test_transformers_itself_generates_the_same_with_it(family: str, options: dict[str, Any]) -> None:
    model: Any = tiny_model(family)
    texts = []
    for memory in (GrowingCache(model.config), DynamicCache(config=model.config)):
        torch.manual_seed(1)
        settings = {"max_new_tokens": 30, "eos_token_id": None} | options
        texts.append(model.generate(PROMPT, past_key_values=memory, **settings).tolist())
    assert texts[0] == texts[1]


def test_only_layers_of_full_attention_grow() -> None:
    kinds = [type(layer).__name__ for layer in GrowingCache(tiny_model("gemma3").config).layers]
    assert kinds == ["DynamicSlidingWindowLayer", "GrowingLayer", "DynamicSlidingWindowLayer"]
