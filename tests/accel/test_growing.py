"""The growing cache: a `DynamicCache` in all it holds, written in place."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from antiphon.accel.generate import generate
from antiphon.accel.growing import ROOM, GrowingCache, GrowingLayer, let_grow
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


def test_tokens_are_written_in_place_until_a_buffer_is_full_and_a_new_one_has_an_eighth_more() -> None:
    layer = filled(GrowingLayer(), 10 * ROOM)
    homes = []
    for token in range(2 * ROOM + 20):
        layer.update(*states(1, start=token))
        homes.append(layer.keys.data_ptr())
    assert len(set(homes)) == 2
    assert homes.index(homes[-1]) == 10 * ROOM // 8  # where the first buffer was full
    held = layer.keys.numel() * 4
    assert held < layer.keys.untyped_storage().size() <= held * 9 / 8


def test_a_short_text_has_room_from_the_start() -> None:
    layer = filled(GrowingLayer(), 1)
    home = layer.keys.data_ptr()
    for token in range(ROOM):
        layer.update(*states(1, start=token))
    assert layer.keys.data_ptr() == home


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


def kinds(cache: Any) -> list[str]:
    return [type(layer).__name__ for layer in cache.layers]


def test_the_cache_that_a_request_leaves_is_a_dynamic_cache_that_grows() -> None:
    model: Any = tiny_model("gemma3")
    output: Any = generate(model, PROMPT, max_new_tokens=5, return_dict_in_generate=True, eos_token_id=None)
    assert type(output.past_key_values) is DynamicCache
    assert kinds(output.past_key_values) == ["DynamicSlidingWindowLayer", "GrowingLayer", "DynamicSlidingWindowLayer"]
    lazy = DynamicCache()
    generate(model, PROMPT, max_new_tokens=5, past_key_values=lazy, eos_token_id=None)
    assert kinds(lazy) == ["GrowingLayer"] * 3


def test_the_cache_that_is_left_goes_on_with_transformers_and_decoded_deterministically() -> None:
    model: Any = tiny_model(seed=11)
    options: dict[str, Any] = {"eos_token_id": None, "do_sample": False, "return_dict_in_generate": True}
    expected = model.generate(PROMPT, max_new_tokens=30, **options).sequences.tolist()
    first: Any = generate(model, PROMPT, max_new_tokens=10, **options)
    ways: list[Any] = [model.generate, partial(generate, model, deterministic=True)]
    for go_on in ways:
        memory = copy.deepcopy(first.past_key_values)
        output = go_on(first.sequences, past_key_values=memory, max_new_tokens=20, **options)
        assert output.sequences.tolist() == expected


def test_a_cache_with_tokens_in_it_and_a_kind_of_ones_own_stay_as_they_are() -> None:
    class Own(DynamicCache):
        pass

    model: Any = tiny_model(seed=11)
    held, own = DynamicCache(config=model.config), Own(config=model.config)
    model.generate(PROMPT, past_key_values=held, max_new_tokens=2)
    offloaded = DynamicCache(config=model.config)
    offloaded.offloading = True  # its constructor wants a GPU's stream
    for cache in (held, own, offloaded):
        let_grow(cache)
        assert set(kinds(cache)) == {"DynamicLayer"}
