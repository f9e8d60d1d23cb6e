"""Recurrent and convolutional states: those of the accepted rows, from the forward pass that verified the draft."""

import random
import sys
from collections.abc import Sequence
from functools import cache
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from antiphon.accel import LanguageModel, PrefixCache
from antiphon.accel.decoding.stats import Step
from antiphon.accel.drafting.draft import EMPTY, ROOT, Draft, chain, path_to
from antiphon.accel.drafting.drafters import Blend
from antiphon.accel.drafting.tree import build_tree
from antiphon.accel.engines.torch.draft_states import Ancestry
from antiphon.accel.engines.torch.engine import traits_of
from antiphon.accel.engines.torch.sequence import TorchSequence
from tests.accel.adversarial_drafters import generate_with_trees
from tests.accel.oracles import forward_rows
from tests.families.table import STATES, tiny_model
from tests.table_part import part
from tests.tiny import byte_tokenizer

pytestmark = pytest.mark.slow

USUAL = ("qwen3_5", "lfm3", "mamba2", "zamba2")
TOLERANCE: dict[str, Any] = {"atol": 2e-5, "rtol": 1e-4}
PROMPT = list(range(40, 61))
GREEDY: dict[str, Any] = {"do_sample": False, "eos_token_id": None, "use_cache": True}


@cache
def model_of(family: str) -> Any:
    return tiny_model(family)


def random_draft(rows: int, seed: int) -> Draft:
    chooser = random.Random(seed)
    parents = tuple(chooser.randrange(max(row - 5, ROOT), row) for row in range(rows))
    return Draft(tuple(chooser.randrange(1, 250) for _ in range(rows)), parents, (0.5,) * rows)


def states_of(cache: Any) -> list[Tensor]:
    """Return everything that a cache holds, in the order of its layers."""
    found: list[Tensor] = []
    for layer in cache.layers:
        for name in ("keys", "values", "conv_states", "recurrent_states"):
            value = getattr(layer, name, None)
            found += [state for state in (value.values() if isinstance(value, dict) else [value]) if state is not None]
    return found


@torch.no_grad()
def sequence_after(model: Any, tokens: Sequence[int]) -> TorchSequence:
    """Return a sequence with these tokens in its cache: the prompt, and then one token for each forward pass."""
    sequence = TorchSequence(model, traits_of(model))
    sequence.prefill(tokens[: len(PROMPT)])
    sequence.keep(())
    for token in tokens[len(PROMPT) :]:
        sequence.forward([token], EMPTY)
        sequence.keep(())
    return sequence


@pytest.mark.parametrize("family", part(STATES, USUAL))
@torch.no_grad()
def test_the_cache_holds_what_plain_steps_over_the_accepted_rows_leave_in_it(family: str) -> None:
    model = model_of(family)
    sequence, text = sequence_after(model, PROMPT), [*PROMPT]
    for seed, rows in enumerate((6, 1, 24, 12, 12, 40)):
        draft = random_draft(rows, seed) if rows > 1 else chain([7])
        path = () if seed == 3 else tuple(path_to(draft, rows - 1))
        if seed == 4:  # a chain that is accepted whole
            draft, path = chain(list(draft.tokens)), tuple(range(rows))
        sequence.forward([text[-1] ^ 1], draft)
        sequence.keep(path)
        text += [text[-1] ^ 1, *(draft.tokens[row] for row in path)]
        plain = sequence_after(model, text)
        for state, truth in zip(states_of(sequence.cache), states_of(plain.cache), strict=True):
            torch.testing.assert_close(state, truth, **TOLERANCE)
            assert state.isfinite().all()
    assert sequence.length == len(text)


@pytest.mark.parametrize("family", part(STATES, USUAL))
@torch.no_grad()
def test_several_pending_tokens_and_a_first_pass_with_a_draft_are_rows_like_others(family: str) -> None:
    model, draft = model_of(family), random_draft(9, seed=5)
    fresh = TorchSequence(model, traits_of(model))
    fresh.forward(PROMPT[:3], draft)
    fresh.keep(path_to(draft, 8))
    text = [*PROMPT[:3], *(draft.tokens[row] for row in path_to(draft, 8))]
    plain = TorchSequence(model, traits_of(model))
    plain.prefill(text)
    plain.keep(())
    for state, truth in zip(states_of(fresh.cache), states_of(plain.cache), strict=True):
        torch.testing.assert_close(state, truth, **TOLERANCE)
    logits = [sequence.forward([11], EMPTY) for sequence in (fresh, plain)]
    torch.testing.assert_close(*logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", part(STATES, USUAL))
@torch.no_grad()
def test_a_discarded_draft_leaves_no_trace(family: str) -> None:
    sequence = sequence_after(model_of(family), PROMPT)
    before = [state.clone() for state in states_of(sequence.cache)]
    sequence.forward([9], random_draft(20, seed=2))
    sequence.discard()
    assert all(map(torch.equal, states_of(sequence.cache), before))


@pytest.mark.parametrize("family", part([*STATES, "kimi_linear"], (*USUAL, "kimi_linear")))
def test_one_forward_pass_for_each_step_except_in_replay(family: str) -> None:
    model = model_of(family)
    prompt = torch.tensor([PROMPT])
    expected = model.generate(prompt, max_new_tokens=48, **GREEDY)
    traits_of(model)
    steps: list[Step] = []
    with forward_rows(model) as rows:
        output: Any = generate_with_trees(
            model, prompt, expected[0].tolist(), 1, on_step=steps.append, max_new_tokens=48, **GREEDY
        )
    assert output.tolist() == expected.tolist()
    if family == "kimi_linear":
        assert len(rows) > len(steps) > 14
    else:
        assert len(rows) == len(steps) <= 14
    assert any(step.drafted > step.accepted > 0 for step in steps), "no draft was accepted in part"


@pytest.mark.parametrize("family", part(STATES, USUAL))
@torch.no_grad()
def test_a_forward_pass_of_another_thread_is_not_affected(family: str) -> None:
    model, other, draft = model_of(family), tiny_model(family, seed=1), random_draft(12, seed=3)
    ids = torch.tensor([PROMPT])
    truth = other(ids, use_cache=False).logits
    found: list[Tensor] = []

    def run_the_other() -> None:
        with torch.no_grad():
            found.append(other(ids, use_cache=False).logits)

    def wait_for_the_other(*_: Any) -> None:
        thread = Thread(target=run_the_other)
        thread.start()
        thread.join()

    alone = sequence_after(model, PROMPT).forward([9], draft)
    sequence = sequence_after(model, PROMPT)
    handle = model.get_input_embeddings().register_forward_hook(wait_for_the_other)
    drafted = sequence.forward([9], draft)
    handle.remove()
    torch.testing.assert_close(found, [truth])
    torch.testing.assert_close(drafted, alone)


@torch.no_grad()
def test_a_convolution_that_ignores_branches_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is compiled after its first request has the graph of transformers' own function."""
    model = model_of("lfm3")
    sequence = sequence_after(model, PROMPT)
    module = sys.modules[type(model).__module__]
    monkeypatch.setattr(module, "causal_conv1d_fn", vars(module)["causal_conv1d_fn"].__wrapped__)
    sequence.forward([9], chain([5, 6, 7]))  # a chain is right all the same
    sequence.keep((0,))
    with pytest.raises(RuntimeError, match="did not follow the branches"):
        sequence.forward([9], random_draft(8, seed=1))


def test_a_limited_time_step_is_that_of_plain_decoding() -> None:
    """Transformers limits the time step in prefills only; steps of one token, and so drafts, have no limit."""
    model: Any = tiny_model("mamba2", time_step_limit=[0.0, 0.02])
    prompt = torch.tensor([PROMPT])
    expected = model.generate(prompt, max_new_tokens=30, **GREEDY)
    steps: list[Step] = []
    output: Any = generate_with_trees(
        model, prompt, expected[0].tolist(), 1, on_step=steps.append, max_new_tokens=30, **GREEDY
    )
    assert output.tolist() == expected.tolist()
    assert len(steps) <= 10


def test_decays_keep_their_digits_after_strong_ones() -> None:
    parents = (ROOT, 0, 1, ROOT, 3)
    ancestry = Ancestry(build_tree(2, parents), torch.device("cpu"))
    steps = torch.tensor([[[-3e5, -2.5, -7e4, -0.125, -0.25, -1.5, -3.0]]])
    decays = ancestry.decays(steps)[0, 0].double()
    lineage = build_tree(2, parents).ancestor_mask
    for row, column in np.ndindex(7, 7):
        between = [k for k in range(7) if lineage[row, k] and lineage[k, column] and k != column]
        truth = np.exp(float(steps[0, 0, between].double().sum())) if lineage[row, column] else 0.0
        assert float(decays[row, column]) == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize("size", [1, 3, 6])
def test_windows_are_the_last_inputs_of_each_path(size: int) -> None:
    ancestry = Ancestry(build_tree(2, (ROOT, 0, ROOT, 2)), torch.device("cpu"))
    paths = [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 4], [0, 1, 4, 5]]
    expected = [[*range(size), *(size + row for row in path)][-size:] for path in paths]
    assert ancestry.windows(size).tolist() == expected


@pytest.mark.parametrize("family", part(STATES, ("qwen3_5",)))
def test_half_precision_verifies_trees_too(family: str) -> None:
    model: Any = tiny_model(family)
    assert traits_of(model.to(torch.bfloat16)).level == "tree"


@pytest.mark.parametrize("family", part(("qwen3_5", "granitemoehybrid", "lfm3"), ("qwen3_5", "lfm3")))
def test_concurrent_requests_and_conversations_have_the_text_of_plain_decoding(family: str) -> None:
    model = LanguageModel(model_of(family), byte_tokenizer())
    prompts = ["one two three one two", "a b a b a", "the cat sat on the mat and the cat"]
    options: dict[str, Any] = {"max_new_tokens": 40, "ignore_eos": True}
    alone = [model.generate(prompt, drafter="nothing", **options).tokens for prompt in prompts]
    results: dict[int, Any] = {}

    def decode(index: int) -> None:
        results[index] = model.generate(prompts[index], drafter=Blend, num_draft_tokens=16, **options).tokens

    threads = [Thread(target=decode, args=(index,)) for index in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[index] for index in range(len(prompts))] == alone
    prefix, turns = PrefixCache(), "one two three"
    for _ in range(3):
        expected = model.generate(turns, drafter="nothing", **options)
        answer = model.generate(turns, drafter=Blend, num_draft_tokens=16, prefix=prefix, **options)
        assert answer.tokens == expected.tokens
        turns += answer.text + " and"


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", ["qwen3_5", "mamba2", "lfm3"])
def test_states_stay_finite_over_a_thousand_tokens(family: str) -> None:
    model: Any = tiny_model(family, max_position_embeddings=2048)
    prompt, name = torch.tensor([PROMPT]), traits_of(model).cache_argument
    expected = model.generate(prompt, max_new_tokens=1024, **GREEDY)
    memory = DynamicCache(config=model.config)
    output: Any = generate_with_trees(
        model, prompt, expected[0].tolist(), 4, max_new_tokens=1024, **{str(name): memory}, **GREEDY
    )
    assert output.tolist() == expected.tolist()
    assert all(state.isfinite().all() for state in states_of(memory))
    plain = sequence_after(model, expected[0, :-1].tolist())
    for state, truth in zip(states_of(memory), states_of(plain.cache), strict=True):
        torch.testing.assert_close(state, truth, atol=1e-4, rtol=1e-3)
