"""Bigrams: the model's best tokens after each single token, computed once, stored, and used only for drafts."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from antiphon.accel.decoding.model_request import ModelRequest, prepare
from antiphon.accel.decoding.options import DecodingOptions
from antiphon.accel.drafting.cost_model import StepCost
from antiphon.accel.drafting.drafters import Blend, Nothing
from antiphon.accel.drafting.drafters.recycling_table import TOP_K, Bigrams, recycling_table_of
from antiphon.accel.engines.torch import bigrams
from antiphon.accel.engines.torch.bigrams import DISCOUNT, FIRST, Forward, load_or_compute_bigrams
from antiphon.accel.engines.torch.engine import engine_of, traits_of
from antiphon.accel.generate import generate
from tests.families.table import tiny_model
from tests.tiny import VOCAB_SIZE

PROMPT = torch.randint(1, 250, (1, 40), generator=torch.Generator().manual_seed(3))


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def forwards_of(model: Any) -> Forward:
    """Return a function that runs forward passes of new sequences."""
    engine = engine_of(model)
    return lambda draft, root: engine.sequence().forward((root,), draft)


def bigrams_of(model: Any) -> Bigrams | None:
    return engine_of(model).bigrams


def forbid(model: Any) -> Any:
    """Return the model, with a hook that fails if its bigrams are computed."""
    traits_of(model)

    def refuse(module: Any, given: Any, named: dict[str, Any]) -> None:
        assert named["input_ids"].shape[1] != 1 + FIRST, "the model was asked"

    model.register_forward_pre_hook(refuse, with_kwargs=True)
    return model


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3", "gpt2", "qwen2"])
def test_bigrams_are_the_models_best_tokens_after_each_token_alone(family: str) -> None:
    model: Any = tiny_model(family)
    assert traits_of(model).level == "tree"
    found: Any = bigrams_of(model)
    assert found.tokens.shape == found.chances.shape == (VOCAB_SIZE, TOP_K)
    start = model.config.get_text_config().bos_token_id or 0
    for token in (0, 1, FIRST, FIRST + 1, VOCAB_SIZE - 1):
        with torch.no_grad():
            logits = model(torch.tensor([[start, token]])).logits[0, -1]
        assert next(iter(found.lookup(token))) == int(logits.argmax())
        shares = logits.softmax(-1)[list(found.lookup(token))]
        assert np.all(np.array(list(found.lookup(token).values())) >= DISCOUNT * shares.numpy() - 1e-4)
    assert np.all(found.chances.sum(1) < 1)
    assert found.lookup(VOCAB_SIZE) == found.lookup(-1) == {}


def test_bigrams_are_computed_once_and_stored_for_other_processes() -> None:
    model, same, other = (tiny_model(seed=seed) for seed in (5, 5, 6))
    first: Any = bigrams_of(model)
    again: Any = bigrams_of(forbid(same))
    assert first is not again
    assert np.array_equal(first.tokens, again.tokens)
    assert np.array_equal(first.chances, again.chances)
    with pytest.raises(AssertionError, match="asked"):
        bigrams_of(forbid(other))


@pytest.mark.parametrize("content", [b"", b"no tensors", None])
def test_a_damaged_file_of_bigrams_is_computed_again(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bigrams, "cache_folder", lambda: tmp_path)
    model, same = tiny_model(seed=5), tiny_model(seed=5)
    expected: Any = load_or_compute_bigrams(model, forwards_of(model))
    [file] = tmp_path.glob("bigrams/*.safetensors")
    file.write_bytes(file.read_bytes()[:-100] if content is None else content)
    found: Any = load_or_compute_bigrams(same, forwards_of(same))
    assert np.array_equal(found.tokens, expected.tokens)
    assert bigrams._read(file, VOCAB_SIZE) is not None


@pytest.mark.parametrize("start", [VOCAB_SIZE, -1, None])
def test_a_model_without_a_bos_token_has_bigrams(start: int | None) -> None:
    model = tiny_model(seed=8, bos_token_id=start)
    found: Any = bigrams_of(model)
    assert len(found.tokens) == VOCAB_SIZE


def test_a_model_whose_bigrams_fail_is_decoded_without_them() -> None:
    model: Any = tiny_model(seed=13)
    traits_of(model)
    asked: list[Any] = []

    def refuse(module: Any, given: Any, named: dict[str, Any]) -> None:
        if named["input_ids"].shape[1] == 1 + FIRST:
            asked.append(module)
            raise RuntimeError("out of memory")

    model.register_forward_pre_hook(refuse, with_kwargs=True)
    for _ in range(2):
        generate(model, PROMPT, max_new_tokens=3, cost=StepCost({64: {1: 1.0, 64: 1.0}}))
    assert asked == [model]


def test_bigrams_save_forward_passes_and_change_no_output() -> None:
    model: Any = tiny_model(seed=11)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data.zero_()  # the next token then depends on the last token only
    options: dict[str, Any] = {"max_new_tokens": 60, "eos_token_id": None, "do_sample": False}
    expected = model.generate(PROMPT, **options).tolist()
    steps: dict[bool, int] = {}
    for is_known in (True, False):
        make = partial(ModelRequest, options=DecodingOptions(num_draft_tokens=8))
        request = engine_of(model).lock.run(lambda: prepare(model, PROMPT, make, **options))  # noqa: B023
        table: Any = recycling_table_of(request.drafter)
        assert table.prior is bigrams_of(model)
        if not is_known:
            table.prior = None
        steps[is_known] = len(list(request.steps()))
        output: Any = request.result()
        assert output.tolist() == expected
    assert steps[True] < steps[False]


def test_bigrams_are_not_computed_without_recycling() -> None:
    model: Any = forbid(tiny_model(seed=12))
    generate(model, PROMPT, drafter=lambda: Blend(recycling=False), max_new_tokens=3, num_draft_tokens=8)
    generate(model, PROMPT, drafter=Nothing, max_new_tokens=3)
    generate(model, PROMPT, num_draft_tokens=0, max_new_tokens=3)
    with pytest.raises(AssertionError, match="asked"):
        generate(model, PROMPT, num_draft_tokens=8, max_new_tokens=3)
