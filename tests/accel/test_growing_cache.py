"""The growing cache holds what a `DynamicCache` holds, but writes in place."""

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from antiphon.accel.engines.torch.cache_kinds import keep_rows
from antiphon.accel.engines.torch.growing_cache import (
    MAX_SHARED_BYTES,
    MIN_FREE_SLOTS,
    GrowingCache,
    GrowingLayer,
    growing_layers,
    make_growing,
    shared_buffers,
)
from antiphon.accel.generate import generate
from antiphon.accel.testing.tiny import tiny_model

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


def together(count: int, max_shared_bytes: int = MAX_SHARED_BYTES) -> list[Any]:
    return list(growing_layers(count, max_shared_bytes=max_shared_bytes))


def expect_same(mine: Any, other: Any) -> None:
    assert mine.get_seq_length() == other.get_seq_length()
    assert mine.get_mask_sizes(3) == other.get_mask_sizes(3)
    torch.testing.assert_close(mine.keys, other.keys)
    torch.testing.assert_close(mine.values, other.values)


def test_tokens_are_written_in_place_and_a_full_buffer_grows_by_an_eighth() -> None:
    layer = filled(GrowingLayer(), 10 * MIN_FREE_SLOTS)
    homes = []
    for token in range(2 * MIN_FREE_SLOTS + 20):
        layer.update(*states(1, start=token))
        homes.append(layer.keys.data_ptr())
    assert len(set(homes)) == 2
    assert homes.index(homes[-1]) == 10 * MIN_FREE_SLOTS // 8  # the first buffer was full there
    held = layer.keys.numel() * 4
    assert held < layer.keys.untyped_storage().size() <= held * 9 / 8


def test_a_new_buffer_has_spare_slots() -> None:
    layer = filled(GrowingLayer(), 1)
    home = layer.keys.data_ptr()
    for token in range(MIN_FREE_SLOTS):
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


@pytest.mark.parametrize("change", CHANGES)
def test_operations_on_one_layer_do_not_affect_layers_in_the_same_buffer(change: str) -> None:
    caches = [together(3), [DynamicLayer() for _ in range(3)]]
    for layers in caches:
        for place, layer in enumerate(layers):
            layer.update(*states(5, start=1000 * place))
        CHANGES[change](layers[1])
        for place, layer in enumerate(layers):
            batch = 2 if change == "reset" or layer.keys is None else layer.keys.shape[0]
            for start in (100, 200):
                layer.update(*states(2, batch, start + place))
    for mine, other in zip(*caches, strict=True):
        expect_same(mine, other)


def test_layers_share_buffers_until_one_is_assigned_other_states() -> None:
    layers = together(3)
    for layer in layers:
        layer.update(*states(5))
    keys, values = shared_buffers(layers)
    assert len({layer.keys.untyped_storage().data_ptr() for layer in layers}) == 1
    assert keys.all_layers().shape == values.all_layers().shape == (3, 2, 2, 5, 4)
    layers[1].update(*states(1))
    assert not shared_buffers(layers)  # the layers have different lengths, as in the middle of a forward pass
    layers[1].crop(-1)
    assert shared_buffers(layers) == (keys, values)
    assert not shared_buffers(layers[:2])
    layers[1].reorder_cache(torch.tensor([1, 0]))
    assert not shared_buffers(layers)


def test_layers_of_different_shapes_have_separate_buffers() -> None:
    layers = together(3)
    for layer, size in zip(layers, (4, 2, 4), strict=True):
        for start in (0, 100):
            layer.update(*(each[..., :size] for each in states(5, start=start)))
    assert not shared_buffers(layers)
    for layer, size in zip(layers, (4, 2, 4), strict=True):
        torch.testing.assert_close(layer.keys, torch.cat([states(5)[0], states(5, start=100)[0]], dim=2)[..., :size])


def test_a_layer_whose_values_leave_the_shared_buffer_moves_its_keys_too() -> None:
    layers = together(2)
    for layer, size in zip(layers, (4, 2), strict=True):
        keys, values = states(5)
        layer.update(keys, values[..., :size])
        layer.update(keys, values[..., :size])
        torch.testing.assert_close(layer.keys, torch.cat([keys, keys], dim=2))
        torch.testing.assert_close(layer.values, torch.cat([values, values], dim=2)[..., :size])
    assert not shared_buffers(layers)


def test_a_buffer_above_the_size_limit_is_not_shared() -> None:
    layers = together(3, max_shared_bytes=3 * 2 * 2 * 4 * 4 * 100)  # a hundred slots
    for layer in layers:
        layer.update(*states(10))
    assert shared_buffers(layers)
    for layer in layers:
        layer.update(*states(90, start=1000))
    assert not shared_buffers(layers)
    for layer in layers:
        torch.testing.assert_close(layer.keys, torch.cat([states(10)[0], states(90, start=1000)[0]], dim=2))


@pytest.mark.parametrize("kept", [[0], [0, 1, 2], [0, 2, 3], [1, 4], [0, 1, 4], [0, 1, 2, 3, 4], []], ids=str)
def test_keep_rows_gives_the_same_result_for_shared_and_separate_buffers(kept: list[int]) -> None:
    alone: list[Any] = [GrowingLayer() for _ in range(3)]
    caches = [Cache(layers=layers) for layers in (together(3), alone)]
    for cache in caches:
        for place in range(3):
            for start, tokens in ((0, 7), (100, 5)):
                cache.update(*states(tokens, start=1000 * place + start), place)
    assert [len(shared_buffers(cache.layers)) for cache in caches] == [2, 0]
    for cache in caches:
        keep_rows(cache, kept, length=7, fed=5)
    for mine, other in zip(caches[0].layers, caches[1].layers, strict=True):
        expect_same(mine, other)
    rows = torch.cat([states(7)[0], states(5, start=100)[0][:, :, kept]], dim=2)
    first: Any = caches[0].layers[0]
    torch.testing.assert_close(first.keys, rows)


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


@pytest.mark.parametrize("way", [copy.deepcopy, lambda layers: pickle.loads(pickle.dumps(layers))])
def test_copies_of_layers_share_copies_of_their_buffers(way: Callable[[Any], Any]) -> None:
    layers = together(3)
    for layer in layers:
        layer.update(*states(7))
    copies = way(layers)
    for each in (layers, copies):
        for layer in each:
            layer.update(*states(5, start=100))
        assert shared_buffers(each)
        keep_rows(Cache(layers=each), [0, 2, 4], length=7, fed=5)
        for layer in each:
            layer.update(*states(2 * MIN_FREE_SLOTS, start=200))
    assert shared_buffers(copies) != shared_buffers(layers)
    for mine, other in zip(copies, layers, strict=True):
        expect_same(mine, other)
        assert mine.keys.data_ptr() != other.keys.data_ptr()


def test_layers_share_no_buffers_in_hybrid_models() -> None:
    cache: Any = GrowingCache(
        tiny_model("gemma3", num_hidden_layers=6, layer_types=["full_attention"] * 5 + ["sliding_attention"]).config
    )
    growing_ones = [layer for layer in cache.layers if type(layer) is GrowingLayer]
    assert len(growing_ones) == 5
    assert len({id(layer._keys) for layer in growing_ones}) == 5


def test_memory_is_freed_when_all_layers_are_reset() -> None:
    layers = together(2)
    for layer in layers:
        layer.update(*states(5))
    [keys, _] = shared_buffers(layers)
    for layer in layers:
        layer.reset()
    assert keys._memory is None
    assert not keys._layers


def test_a_sequence_that_outgrows_the_shared_buffers_has_the_same_output() -> None:
    model: Any = tiny_model(seed=11)
    options: dict[str, Any] = {"max_new_tokens": 80, "eos_token_id": None, "do_sample": False}
    expected = model.generate(PROMPT, **options).tolist()
    heads, size = model.config.num_key_value_heads, model.config.hidden_size // model.config.num_attention_heads
    layers = model.config.num_hidden_layers
    memory = GrowingCache(model.config)
    memory.layers = [*growing_layers(layers, max_shared_bytes=layers * heads * size * 4 * (40 + MIN_FREE_SLOTS + 1))]
    output = generate(model, PROMPT, past_key_values=memory, num_draft_tokens=8, **options)
    assert isinstance(output, Tensor)
    assert output.tolist() == expected
    assert not shared_buffers(memory.layers)


def test_a_copied_layer_is_independent_of_the_original() -> None:
    layer = filled(GrowingLayer())
    other = copy.deepcopy(layer)
    layer.update(*states(2, start=100))
    other.update(*states(2, start=200))
    assert layer.keys[0, 0, 5, 0] == 100
    assert other.keys[0, 0, 5, 0] == 200


def test_only_full_attention_layers_are_replaced() -> None:
    kinds = [type(layer).__name__ for layer in GrowingCache(tiny_model("gemma3").config).layers]
    assert kinds == ["DynamicSlidingWindowLayer", "GrowingLayer", "DynamicSlidingWindowLayer"]


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


def test_the_returned_cache_continues_with_transformers_and_reproducibly() -> None:
    model: Any = tiny_model(seed=11)
    options: dict[str, Any] = {"eos_token_id": None, "do_sample": False, "return_dict_in_generate": True}
    expected = model.generate(PROMPT, max_new_tokens=30, **options).sequences.tolist()
    first: Any = generate(model, PROMPT, max_new_tokens=10, **options)
    ways: list[Any] = [model.generate, partial(generate, model, reproducible=True)]
    for go_on in ways:
        memory = copy.deepcopy(first.past_key_values)
        output = go_on(first.sequences, past_key_values=memory, max_new_tokens=20, **options)
        assert output.sequences.tolist() == expected


def test_filled_caches_and_subclasses_are_not_changed() -> None:
    class Own(DynamicCache):
        pass

    model: Any = tiny_model(seed=11)
    held, own = DynamicCache(config=model.config), Own(config=model.config)
    model.generate(PROMPT, past_key_values=held, max_new_tokens=2)
    offloaded = DynamicCache(config=model.config)
    offloaded.offloading = True  # the constructor needs a CUDA stream
    for cache in (held, own, offloaded):
        make_growing(cache)
        assert set(kinds(cache)) == {"DynamicLayer"}
