"""The growing cache holds what a `DynamicCache` holds, but writes in place."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from antiphon.accel.engines.torch.growing_cache import (
    GrowingCache,
    GrowingLayer,
)
from antiphon.accel.generate import generate
from tests.tiny import tiny_model

PROMPT = torch.randint(1, 250, (1, 40), generator=torch.Generator().manual_seed(3))


def states(tokens: int, batch: int = 2, start: int = 0) -> tuple[Tensor, Tensor]:
    """Return keys and values of shape (batch, 2, tokens, 4), all numbers different."""
    keys = torch.arange(start, start + batch * 2 * tokens * 4, dtype=torch.float32).reshape(batch, 2, tokens, 4)
    return keys, -keys


def filled(layer: Any, tokens: int = 5) -> Any:
    layer.update(*states(tokens))
    return layer


def hold(layer: Any, keys: Tensor, values: Tensor) -> None:
    layer.keys, layer.values = keys, values


def expect_same(mine: Any, other: Any) -> None:
    assert mine.get_seq_length() == other.get_seq_length()
    assert mine.get_mask_sizes(3) == other.get_mask_sizes(3)
    torch.testing.assert_close(mine.keys, other.keys)
    torch.testing.assert_close(mine.values, other.values)


CHANGES: dict[str, Callable[[Any], object]] = {
    "nothing": lambda layer: None,
    "crop": lambda layer: layer.crop(-3),
    "crop to nothing": lambda layer: layer.crop(-5),
    "reorder": lambda layer: layer.reorder_cache(torch.tensor([1, 0])),
    "repeat": lambda layer: layer.batch_repeat_interleave(3),
    "select": lambda layer: layer.batch_select_indices(torch.tensor([1])),
    "reset": lambda layer: layer.reset(),
    "assigned keys": lambda layer: hold(layer, layer.keys[:, :, 1:], layer.values[:, :, 1:]),
    "every other key": lambda layer: hold(layer, layer.keys[:, :, ::2], layer.values[:, :, ::2]),
    "the first row alone": lambda layer: hold(layer, layer.keys[:1], layer.values[:1]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_layer_operations_have_the_effect_of_a_dynamic_layer(change: str) -> None:
    layers = [filled(GrowingLayer()), filled(DynamicCache(config=tiny_model().config).layers[0])]
    for layer in layers:
        CHANGES[change](layer)
        batch = 2 if change == "reset" or layer.keys is None else layer.keys.shape[0]
        for start in (100, 200):
            layer.update(*states(2, batch, start))
    expect_same(*layers)


def test_adopted_states_are_never_written_to() -> None:
    layer, (keys, values) = GrowingLayer(), states(5)
    layer.keys, layer.values = keys, values
    layer.crop(-3)
    layer.update(*states(2, start=100))
    torch.testing.assert_close(layer.keys, torch.cat([keys[:, :, :2], states(2, start=100)[0]], dim=2))
    torch.testing.assert_close((keys, values), states(5))


def test_a_cache_filled_without_gradients_continues_with_gradients() -> None:
    model: Any = tiny_model()
    memory = GrowingCache(model.config)
    with torch.no_grad():
        model(PROMPT, past_key_values=memory)
    with torch.enable_grad():
        mine = model(PROMPT[:, :3], past_key_values=memory).logits
    torch.testing.assert_close(mine, model(torch.cat([PROMPT, PROMPT[:, :3]], dim=1)).logits[:, -3:])


def kinds(cache: Any) -> list[str]:
    return [type(layer).__name__ for layer in cache.layers]


def test_the_returned_cache_is_a_dynamic_cache_with_growing_layers() -> None:
    model: Any = tiny_model("gemma3")
    output: Any = generate(model, PROMPT, max_new_tokens=5, return_dict_in_generate=True, eos_token_id=None)
    assert type(output.past_key_values) is DynamicCache
    assert kinds(output.past_key_values) == ["DynamicSlidingWindowLayer", "GrowingLayer", "DynamicSlidingWindowLayer"]
    lazy = DynamicCache()
    generate(model, PROMPT, max_new_tokens=5, past_key_values=lazy, eos_token_id=None)
    assert kinds(lazy) == ["GrowingLayer"] * 3
