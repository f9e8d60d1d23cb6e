"""Contract table of caches: every kind with several families, compared with `generate` and the same kind of cache."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    Cache,
    DynamicCache,
    PretrainedConfig,
    QuantizedCache,
    StaticCache,
)
from transformers.cache_utils import QuantizedLayer, StaticLayer

from antiphon.accel.decoding.stats import Step
from antiphon.accel.drafting.draft import Drafter, Tokens
from antiphon.accel.engines.protocol import Level
from antiphon.accel.engines.torch.cache_kinds import supported_level
from antiphon.accel.engines.torch.engine import traits_of
from antiphon.accel.engines.torch.growing_cache import (
    GrowingCache,
    GrowingLayer,
)
from antiphon.accel.generate import generate
from tests.accel.adversarial_drafters import OracleDrafter, RandomTreeDrafter, generate_with_trees
from tests.families.table import tiny_model
from tests.table_part import part
from tests.tiny import PAD, VOCAB_SIZE

pytestmark = pytest.mark.slow

PROMPT = torch.randint(1, 250, (1, 40), generator=torch.Generator().manual_seed(3))
LENGTH = PROMPT.shape[1]
NEW = 36


@cache
def model_of(family: str) -> Any:
    return tiny_model(family)


class RoundedLayer(QuantizedLayer):
    """A group-wise quantised layer without an extra library: 8-bit states, but the last 16 in full precision."""

    def __init__(self) -> None:
        super().__init__(residual_length=16)

    def _quantize(self, tensor: Tensor, axis: int = 0) -> tuple[Tensor, Tensor]:
        scale = tensor.abs().amax() / 127
        return (tensor / scale).round().to(torch.int8), scale

    def _dequantize(self, q_tensor: tuple[Tensor, Tensor]) -> Tensor:
        return q_tensor[0].float() * q_tensor[1]


def full_static(config: PretrainedConfig, size: int) -> Cache:
    return Cache(layers=[StaticLayer(size) for _ in range(config.num_hidden_layers)])


# Each entry makes a cache from a config and a maximum number of tokens.
KINDS: dict[str, Callable[[PretrainedConfig, int], Cache]] = {
    "dynamic": lambda config, size: DynamicCache(config=config),
    "dynamic of full layers": lambda config, size: DynamicCache(),
    "growing": lambda config, size: GrowingCache(config),
    "growing of full layers": lambda config, size: GrowingCache(),
    "static of full layers": full_static,
    "static": lambda config, size: StaticCache(config=config, max_cache_len=size),
    "fp8": lambda config, size: QuantizedCache("fp8", config),
    "group-wise quantised": lambda config, size: Cache(layers=[RoundedLayer() for _ in range(2)]),
}
SLIDING = ("mistral", "gemma3", "llama4")
FULL = ("llama", "deepseek_v3")
QUANTISED = ("fp8", "group-wise quantised")
CHUNKED = [("dynamic", "llama4"), ("static of full layers", "llama4")]
TABLE = [(kind, family) for kind in KINDS for family in FULL + SLIDING if not (kind in QUANTISED and family in SLIDING)]
SOME = [
    (kind, family)
    for kind, family in TABLE
    if family == "gemma3" or (kind in ("static", *QUANTISED) and family == "llama") or (kind, family) in CHUNKED
]
USUAL = [(kind, "llama") for kind in KINDS] + [("dynamic", "gemma3"), ("dynamic", "llama4"), ("static", "mistral")]
"""The rows that `make test` runs: each kind of cache, and each kind of layer."""
PLAIN = {(kind, family) for kind, family in TABLE if kind == "group-wise quantised"} | {
    ("static", family) for family in SLIDING
}
MODES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "temperature": 0.9, "top_k": 30},
}
DRAFTERS: dict[str, Callable[[Tokens], Drafter]] = {
    "greedy": partial(OracleDrafter, depth=5),
    "sampled": partial(RandomTreeDrafter, seed=1, vocab_size=VOCAB_SIZE),
}
DETAILED: dict[str, Any] = {"return_dict_in_generate": True, "output_logits": True, "eos_token_id": None}


def warned(kind: str, family: str) -> Any:
    """Return a context that expects a warning for caches that are decoded plainly, and none for others."""
    if (kind, family) in PLAIN:
        return pytest.warns(
            UserWarning, match="decoded plainly, without drafts: it has layers that cannot be rolled back"
        )
    return torch.no_grad()


@cache
def plain(kind: str, family: str, mode: str) -> Any:
    torch.manual_seed(5)
    model = model_of(family)
    memory = KINDS[kind](model.config, LENGTH + NEW - 1)
    return model.generate(PROMPT, past_key_values=memory, max_new_tokens=NEW, **DETAILED, **MODES[mode])


@pytest.mark.parametrize("mode", part(MODES, ("greedy",)))
@pytest.mark.parametrize(("kind", "family"), part(TABLE, USUAL))
def test_output_and_logits_equal_generate_with_the_same_cache(kind: str, family: str, mode: str) -> None:
    model, expected = model_of(family), plain(kind, family, mode)
    steps: list[Step] = []
    drafter = DRAFTERS[mode](expected.sequences[0].tolist())
    memory = KINDS[kind](model.config, LENGTH + NEW - 1)  # as many slots as plain decoding needs
    torch.manual_seed(5)
    with warned(kind, family):
        output: Any = generate(
            model, PROMPT, past_key_values=memory, num_draft_tokens=32, drafter=lambda: drafter, on_step=steps.append,
            max_new_tokens=NEW, **DETAILED, **MODES[mode],
        )  # fmt: skip
    assert output.sequences.tolist() == expected.sequences.tolist()
    tolerance = 5e-3 if kind == "fp8" else 2e-4  # in fp8 about one key in a thousand may round to the next code
    torch.testing.assert_close(output.logits, expected.logits, atol=tolerance, rtol=1e-4)
    assert output.past_key_values is memory
    assert int(memory.get_seq_length()) == LENGTH + NEW - 1
    expect_equal_caches(memory, expected.past_key_values)
    assert not any(memory.is_recording_past(index) for index in range(len(memory)))
    assert (len(steps) == NEW) if (kind, family) in PLAIN else (len(steps) <= NEW // 2)


def expect_equal_caches(mine: Cache, other: Cache) -> None:
    length = int(other.get_seq_length())
    layers: list[tuple[Any, Any]] = list(zip(mine.layers, other.layers, strict=True))
    for one, two in layers:
        assert int(one.get_seq_length()) == int(two.get_seq_length()) == length
        for name in ("keys", "values"):
            first, second = states(one, name, length), states(two, name, length)
            assert first.shape == second.shape
            apart = ~torch.isclose(first, second, atol=1e-4, rtol=1e-4)
            assert apart.float().mean() <= (0.005 if hasattr(one, "_quantized_keys") else 0)


def states(layer: Any, name: str, length: int) -> Tensor:
    if hasattr(layer, "_quantized_keys"):
        quantised: Tensor = layer._dequantize(getattr(layer, f"_quantized_{name}"))
        return quantised
    tensor: Tensor = getattr(layer, name)
    return tensor[..., :length, :] if isinstance(layer, StaticLayer) else tensor


def two_turns(kind: str, family: str, speakers: str, truth: Tokens = ()) -> list[int]:
    """Return the tokens of several turns that share a cache: 16 tokens per turn, three user tokens between turns.

    Each letter of ``speakers`` is a turn: "d" is decoded with drafts, "p" by `generate` of transformers.
    """
    model = model_of(family)
    options: dict[str, Any] = {"max_new_tokens": 16, "eos_token_id": None, "do_sample": False}
    options["past_key_values"] = KINDS[kind](model.config, LENGTH + 40)
    ids = PROMPT
    for speaker in speakers:
        options["attention_mask"] = torch.ones_like(ids)  # else a pad token in the output would count as padding
        if speaker == "p":
            output = model.generate(ids, **options)
        else:
            output = generate_with_trees(model, ids, truth, 4, **options)
        ids = torch.cat([output, torch.tensor([[7, 9, 11]])], dim=1)
    text: list[int] = ids[0].tolist()
    return text


@pytest.mark.parametrize(("kind", "family"), part(SOME, [("growing", "gemma3"), ("static", "llama")]))
def test_a_conversation_continues_from_a_cache_of_generate_or_of_the_engine(kind: str, family: str) -> None:
    expected = two_turns(kind, family, "pp")
    with warned(kind, family):
        assert two_turns(kind, family, "dd", expected) == expected
        assert two_turns(kind, family, "pd", expected) == expected
        assert two_turns(kind, family, "dp", expected) == expected


@pytest.mark.parametrize("circumstance", ["in chunks", "left padding"])
@pytest.mark.parametrize(("kind", "family"), part(SOME, [("growing", "gemma3"), ("static", "llama")]))
def test_padded_prompts_and_chunked_prefill_give_the_same_output(kind: str, family: str, circumstance: str) -> None:
    model = model_of(family)
    prompt = PROMPT
    options: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None}
    if circumstance == "in chunks":
        options["prefill_chunk_size"] = 16
    else:
        prompt = torch.cat([torch.full((1, 7), PAD), PROMPT], dim=1)
        options["attention_mask"] = (prompt != PAD).long()
    size = prompt.shape[1] + 23
    expected = model.generate(prompt, past_key_values=KINDS[kind](model.config, size), **options)
    text = expected[0].tolist()
    with warned(kind, family):
        output: Any = generate_with_trees(
            model, prompt, text, 2, past_key_values=KINDS[kind](model.config, size), **options
        )
    assert output.tolist() == expected.tolist()


# Models that verify only chains or have recurrent state, and their level with each cache.
LEVELS: dict[tuple[str, str], Level] = {
    ("gpt_neo", "growing"): "linear",
    ("gpt_neo", "fp8"): "linear",
    ("gpt_neo", "static"): "plain",
    ("lfm2", "growing"): "tree",
    ("lfm2", "static"): "tree",
    ("mamba2", "static"): "tree",
    ("qwen3_5", "static"): "tree",
    ("kimi_linear", "growing"): "replay",
    ("kimi_linear", "static"): "plain",
}


@pytest.mark.parametrize(("family", "kind"), LEVELS)
def test_models_of_chains_or_with_state_are_exact_with_other_caches(family: str, kind: str) -> None:
    model, level = model_of(family), LEVELS[family, kind]
    name = "cache_params" if family == "mamba2" else "past_key_values"
    options: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None, "use_cache": True}
    expected = model.generate(PROMPT, **options, **{name: KINDS[kind](model.config, LENGTH + 24)})
    text = expected[0].tolist()
    steps: list[Step] = []
    memory = KINDS[kind](model.config, LENGTH + 24)
    options[name] = memory
    with pytest.warns(UserWarning, match="rolled back") if level == "plain" else torch.no_grad():
        output: Any = generate_with_trees(model, PROMPT, text, 2, on_step=steps.append, **options)
    assert output.tolist() == expected.tolist()
    assert supported_level(memory, traits_of(model).level)[0] == level
    assert not any(memory.is_recording_past(index) for index in range(len(memory)))
    assert (len(steps) < 24) == (level != "plain")


def test_eager_attention_masks_the_unused_slots_of_a_fixed_buffer() -> None:
    model: Any = tiny_model("gemma3", attn_implementation="eager")
    options: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None}
    text = model.generate(PROMPT, **options)[0].tolist()
    output: Any = generate_with_trees(
        model, PROMPT, text, 2, past_key_values=full_static(model.config, LENGTH + 23), **options
    )
    assert output[0].tolist() == text


def random_states(tokens: int, batch: int = 2, start: int = 0) -> tuple[Tensor, Tensor]:
    """Return keys and values of shape (batch, 2, tokens, 4), all numbers different."""
    keys = torch.arange(start, start + batch * 2 * tokens * 4, dtype=torch.float32).reshape(batch, 2, tokens, 4)
    return keys, -keys


def filled(layer: Any, tokens: int = 5) -> Any:
    layer.update(*random_states(tokens))
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
            layer.update(*random_states(2, batch, start))
    expect_same(*layers)


def test_adopted_states_are_never_written_to() -> None:
    layer, (keys, values) = GrowingLayer(), random_states(5)
    layer.keys, layer.values = keys, values
    layer.crop(-3)
    layer.update(*random_states(2, start=100))
    torch.testing.assert_close(layer.keys, torch.cat([keys[:, :, :2], random_states(2, start=100)[0]], dim=2))
    torch.testing.assert_close((keys, values), random_states(5))


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
