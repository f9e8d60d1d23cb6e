"""Decoding with drafts stops, calls processors and leaves the KV cache exactly as plain decoding does."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from antiphon.accel.decoding.stats import Step
from antiphon.accel.drafting.draft import Accepted, Draft, Logits
from antiphon.accel.drafting.drafters.nothing import Nothing
from antiphon.accel.engines.torch.engine import traits_of
from antiphon.accel.engines.torch.sequence import TorchSequence
from antiphon.accel.generate import generate
from tests.accel.adversarial_drafters import OracleDrafter, RandomTreeDrafter
from tests.accel.oracles import forward_rows, longest_path
from tests.families.table import tiny_model
from tests.tiny import FAMILIES, VOCAB_SIZE

PROMPT = torch.randint(1, 250, (1, 40), generator=torch.Generator().manual_seed(3))
LENGTH = PROMPT.shape[1]


def plain(model: Any, **options: Any) -> list[int]:
    """Return the output of transformers' greedy decoding."""
    output = model.generate(PROMPT, do_sample=False, **({"eos_token_id": None, "max_new_tokens": 40} | options))
    return list(output[0].tolist())


def ours(model: Any, text: list[int], depth: int = 7, **options: Any) -> tuple[list[int], list[Step]]:
    steps: list[Step] = []
    settings = {"eos_token_id": None, "max_new_tokens": 40, "do_sample": False, "num_draft_tokens": 32} | options
    output: Any = generate(model, PROMPT, drafter=lambda: OracleDrafter(text, depth), on_step=steps.append, **settings)
    return output[0].tolist(), steps


@pytest.mark.parametrize("depth", [1, 3, 8])
def test_a_correct_draft_of_length_d_emits_d_plus_one_tokens_per_step(depth: int) -> None:
    model = tiny_model(seed=11)
    text = plain(model, max_new_tokens=1 + 3 * (depth + 1))
    output, steps = ours(model, text, depth, max_new_tokens=1 + 3 * (depth + 1))
    assert output == text
    assert [len(step.tokens) for step in steps] == [1, depth + 1, depth + 1, depth + 1]


@pytest.mark.parametrize("place", range(9, 18))
def test_an_eos_token_within_accepted_tokens_ends_the_output(place: int) -> None:
    model = tiny_model(seed=11)
    end = plain(model)[LENGTH + place]
    expected = plain(model, eos_token_id=end, pad_token_id=0)
    output, steps = ours(model, plain(model), eos_token_id=end, pad_token_id=0)
    assert output == expected
    assert output[-1] == end
    assert steps[-1].finish == "stop"


@pytest.mark.parametrize("limit", range(1, 19))
def test_max_new_tokens_is_exact_within_accepted_tokens(limit: int) -> None:
    model = tiny_model(seed=11)
    output, steps = ours(model, plain(model), max_new_tokens=limit)
    assert output == plain(model, max_new_tokens=limit)
    assert steps[-1].finish == "length"


def test_token_id_0_after_a_leaf_is_not_padding() -> None:
    model = tiny_model(seed=11)
    often: dict[str, Any] = {"sequence_bias": [[[0], 3.5]]}
    text = plain(model, **often)
    output, steps = ours(model, text, 2, **often)
    assert output == text
    assert any(step.tokens[-1] == 0 and step.accepted == step.drafted > 0 for step in steps)


class Counting(LogitsProcessor):
    """A stateful processor: the forbidden token depends on the number of calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, ...]] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.calls.append(tuple(input_ids[0].tolist()))
        scores = scores.clone()
        scores[:, len(self.calls) % VOCAB_SIZE] = -torch.inf
        return scores


def test_logits_processors_are_called_once_per_token_with_the_tokens_so_far() -> None:
    model = tiny_model(seed=11)
    theirs, mine = Counting(), Counting()
    text = plain(model, logits_processor=LogitsProcessorList([theirs]))
    output, steps = ours(model, text, logits_processor=LogitsProcessorList([mine]))
    assert output == text
    assert mine.calls == theirs.calls
    assert len(steps) < len(theirs.calls)


@pytest.mark.parametrize("family", FAMILIES)
def test_after_every_step_the_cache_is_that_of_a_fresh_prefill(family: str) -> None:
    model = tiny_model(family)
    text = plain(model)
    tree_drafter = RandomTreeDrafter(text, 7, VOCAB_SIZE)
    cached = TorchSequence(model, traits_of(model))
    lengths: list[int] = []
    with torch.no_grad():
        cached.prefill(text[:LENGTH])
        cached.keep(())
        while cached.length < LENGTH + 30:
            known = text[: cached.length + 1]
            draft = tree_drafter.propose(known, 16)
            cached.forward(known[-1:], draft)
            cached.keep(longest_path(draft, text[len(known) :]))
            lengths.append(cached.length)
            expect_cache_of(cached, text[: cached.length])
    assert len(lengths) < 25


def expect_cache_of(cached: TorchSequence, tokens: list[int]) -> None:
    fresh = TorchSequence(cached.model, cached.traits)
    fresh.prefill(tokens)
    fresh.keep(())
    layers: list[tuple[Any, Any]] = list(zip(cached.cache.layers, fresh.cache.layers, strict=True))
    for mine, other in layers:
        assert mine.get_seq_length() == other.get_seq_length() == len(tokens)
        torch.testing.assert_close(mine.keys, other.keys, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(mine.values, other.values, atol=1e-4, rtol=1e-4)


class Recurring:
    """A drafter that always proposes a chain of the last token."""

    def begin(self, prompt: Any, references: Any) -> None: ...

    def propose(self, context: Any, budget: int) -> Draft:
        return Draft((context[-1],) * 20, tuple(range(-1, 19)), (1.0,) * 20)

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        assert len(draft) < 20
        assert logits is not None
        assert logits.tensor().shape == (1 + len(draft), VOCAB_SIZE)


def test_no_draft_reaches_past_the_last_learned_position() -> None:
    model = tiny_model("gpt2", n_positions=64, max_position_embeddings=64)
    output: Any = generate(
        model, PROMPT, drafter=Recurring, num_draft_tokens=19, max_new_tokens=24, do_sample=False, eos_token_id=None
    )
    assert output[0].tolist() == plain(model, max_new_tokens=24)


ROPES: dict[str, dict[str, Any]] = {
    "dynamic": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
    "yarn": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
}


@pytest.mark.parametrize("rope", ROPES)
def test_no_draft_reaches_over_a_switch_of_rotary_frequencies(rope: str) -> None:
    model = tiny_model(rope_parameters=ROPES[rope], max_position_embeddings=52)
    text = plain(model)
    output, steps = ours(model, text)
    assert output == text
    assert len(steps) < 40


def test_longrope_resets_the_cache_when_transformers_does() -> None:
    long, short = [4.0] * 8, [1.0] * 8
    rope = {"rope_type": "longrope", "long_factor": long, "short_factor": short, "rope_theta": 10000.0}
    model = tiny_model(
        "phi3", rope_parameters=rope | {"original_max_position_embeddings": 52}, original_max_position_embeddings=52,
        max_position_embeddings=208,
    )  # fmt: skip
    assert traits_of(model).rope is not None
    text = plain(model)
    output, steps = ours(model, text)
    assert output == text
    assert len(steps) < 20


def shapes_of(model: Any, drafter: Any, **options: Any) -> tuple[list[int], list[int]]:
    """Return the text, and the number of rows of each forward pass."""
    traits_of(model)
    settings = {"max_new_tokens": 4, "eos_token_id": None, "do_sample": False, "num_draft_tokens": 32} | options
    with forward_rows(model) as fed:
        output = generate(model, PROMPT, drafter=drafter, **settings)
    assert isinstance(output, Tensor)
    return output[0].tolist(), fed


class PrefillProber(Nothing):
    """Proposes three probes below the prompt's last token, and no later drafts."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, ...]] = []

    def begin(self, prompt: Any, references: Any) -> Draft:  # type: ignore[override]
        return Draft((1, 2, 3), (-1, 0, -1), (0.5,) * 3, num_probes=3)

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        assert logits is not None
        self.answers.append((len(draft), *logits.tensor().shape))


def test_a_prompt_is_prefilled_up_to_its_last_token_if_the_drafter_drafts_below_that() -> None:
    model = tiny_model(seed=11)
    expected = plain(model, max_new_tokens=4)
    prober = PrefillProber()
    assert shapes_of(model, Nothing) == (expected, [LENGTH, 1, 1, 1])
    assert shapes_of(model, lambda: prober) == (expected, [LENGTH - 1, 1 + 3, 1, 1, 1])
    assert prober.answers == [(3, 4, VOCAB_SIZE), *[(0, 1, VOCAB_SIZE)] * 3]
    assert shapes_of(model, PrefillProber, prefill_chunk_size=16) == (expected, [16, 16, 7, 1 + 3, 1, 1, 1])
    assert shapes_of(model, PrefillProber, num_draft_tokens=2) == (expected, [LENGTH - 1, 1, 1, 1, 1]), (
        "the probes exceed the budget"
    )


def test_no_draft_shares_the_prefill_if_that_could_change_its_logits() -> None:
    model = tiny_model(seed=11)
    assert TorchSequence(model, traits_of(model)).can_draft_at_prefill([5, 6])
    assert not TorchSequence(model, traits_of(model), reproducible=True).can_draft_at_prefill([5, 6]), (
        "its logits must be bitwise equal"
    )
    assert not TorchSequence(model, traits_of(model)).can_draft_at_prefill([5])
    longrope = tiny_model(rope_parameters=ROPES["dynamic"], max_position_embeddings=52)
    assert shapes_of(longrope, PrefillProber)[1][0] == LENGTH
    assert shapes_of(tiny_model("mamba2"), PrefillProber)[1][0] == LENGTH
