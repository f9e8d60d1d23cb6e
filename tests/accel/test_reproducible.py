"""Reproducible decoding: the same tokens for any draft in half precision too, or an error with the reason."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from antiphon.accel import LanguageModel
from antiphon.accel.decoding.options import DecodingOptions
from antiphon.accel.drafting.draft import DrafterFactory
from antiphon.accel.drafting.drafters import Nothing
from antiphon.accel.drafting.tree import AttentionSpan, build_tree
from antiphon.accel.engines.protocol import REPRODUCIBLE_ROWS
from antiphon.accel.engines.torch.attention import attention_mask, exact_attention, implementation_of
from antiphon.accel.engines.torch.engine import engine_of
from antiphon.accel.generate import generate
from tests.accel.adversarial_drafters import (
    OracleDrafter,
    ProbingDrafter,
    RandomTreeDrafter,
    RecordingDrafter,
    WrongDrafter,
)
from tests.accel.oracles import forward_rows
from tests.accel.test_contract import prompt_of
from tests.families.table import tiny_model
from tests.table_part import part
from tests.tiny import FAMILIES, VOCAB_SIZE, byte_tokenizer

pytestmark = pytest.mark.slow

CASES = [*((family, torch.bfloat16) for family in FAMILIES), ("llama", torch.float16), ("gemma3", torch.float16)]
OPTIONS: dict[str, Any] = {"max_new_tokens": 40, "do_sample": False, "eos_token_id": None}


@cache
def half(family: str, dtype: torch.dtype, seed: int = 0) -> Any:
    model: Any = tiny_model(family, seed=seed)
    return model.to(dtype)


def steady(model: Any, prompt: Tensor, drafter: DrafterFactory = Nothing, **more: Any) -> list[int]:
    output: Any = generate(model, prompt, drafter=drafter, **({"reproducible": True} | OPTIONS | more))
    tokens: list[int] = output[0].tolist()
    return tokens


def adversaries(text: list[int]) -> dict[str, DrafterFactory]:
    return {
        "random trees": lambda: RandomTreeDrafter(text, 1, VOCAB_SIZE),
        "random trees 2": lambda: RandomTreeDrafter(text, 2, VOCAB_SIZE),
        "oracle": lambda: OracleDrafter(text, 5),
        "wrong": lambda: WrongDrafter(text, 5),
        "probing": lambda: ProbingDrafter(RandomTreeDrafter(text, 3, VOCAB_SIZE), text, 5, VOCAB_SIZE),
    }


@pytest.mark.parametrize(("family", "dtype"), part(CASES, [("llama", torch.bfloat16), ("gemma3", torch.float16)]))
def test_no_draft_changes_a_token(family: str, dtype: torch.dtype) -> None:
    model, prompt = half(family, dtype), prompt_of(3)
    text = steady(model, prompt)
    for name, drafter in adversaries(text).items():
        assert steady(model, prompt, drafter) == text, name


class Grouped(torch.nn.Module):
    """A stand-in for an attention layer, with the attributes that attention functions read."""

    num_key_value_groups = 2
    is_causal = True


@pytest.mark.parametrize("reach", [AttentionSpan(), AttentionSpan(window=6)])
def test_each_row_is_one_query_over_exactly_its_visible_keys(reach: AttentionSpan) -> None:
    tree = build_tree(1, (-1, -1, 1, 0, 2), padding_rows=2)
    sees = attention_mask(tree, reach, length=20, offset=4, padding=7)
    random = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(1, heads, rows, 16, generator=random) for heads, rows in ((4, 8), (2, 24), (2, 24))
    )
    output, _ = exact_attention(Grouped(), query, key, value, sees[None, None])
    for row in range(8):
        seen = sees[row].nonzero()[:, 0].tolist()
        alone = exact_attention(Grouped(), query[:, :, row : row + 1], key[:, :, seen], value[:, :, seen], None)[0]
        assert torch.equal(output[:, row : row + 1], alone if seen else torch.zeros(1, 1, 4, 16)), row
    several = [each.expand(2, -1, -1, -1) for each in (query, key, value)]
    with pytest.raises(ValueError, match="one prompt at a time; the batch has 2"):
        exact_attention(Grouped(), several[0], several[1], several[2], sees[None, None])


@pytest.mark.parametrize("dtype", part((torch.bfloat16, torch.float32), (torch.bfloat16,)))
@pytest.mark.parametrize("family", part(("llama", "gemma3", "gpt2"), ("llama", "gemma3")))
def test_no_draft_changes_a_single_bit_of_the_logits(family: str, dtype: torch.dtype) -> None:
    """Logits are compared bitwise, because rounding rarely changes which token is the most likely one."""
    model, prompt = half(family, dtype), prompt_of(5)
    text = steady(model, prompt)
    plain, drafted = RecordingDrafter(Nothing()), RecordingDrafter(RandomTreeDrafter(text, 4, VOCAB_SIZE))
    steady(model, prompt, lambda: plain)
    steady(model, prompt, lambda: drafted)
    truth = {record.length: record.logits[0] for record in plain.records}
    assert any(len(record.accepted.path) > 1 for record in drafted.records)
    for record in drafted.records:
        assert len(record.logits) == 1 + len(record.draft)
        for depth, row in enumerate((-1, *record.accepted.path)):
            assert torch.equal(record.logits[row + 1], truth[record.length + depth])


def test_sampling_draws_the_same_tokens_with_and_without_drafts() -> None:
    model, prompt = half("qwen3", torch.bfloat16), prompt_of(8)
    texts = []
    for drafter in (Nothing, *adversaries(steady(model, prompt)).values()):
        torch.manual_seed(4)
        texts.append(steady(model, prompt, drafter, do_sample=True, temperature=1.5, top_k=0))
    assert texts[0] != steady(model, prompt)
    assert all(text == texts[0] for text in texts)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_left_padding_changes_no_token(family: str) -> None:
    model = half(family, torch.bfloat16)
    padded = torch.cat([torch.full((1, 7), 258), prompt_of(3)], dim=1)
    mask = (torch.arange(47) >= 7).long()[None]
    text = steady(model, padded, attention_mask=mask)
    for name, drafter in adversaries(text).items():
        assert steady(model, padded, drafter, attention_mask=mask) == text, name


@pytest.mark.parametrize(("given", "rows"), [(None, 39), (3, 3), (64, 39)])
def test_a_draft_has_at_most_the_rows_of_the_fixed_forward_pass(given: int | None, rows: int) -> None:
    assert DecodingOptions(reproducible=True, num_draft_tokens=given).max_draft_rows == rows


QUESTIONS = ("How long does honey keep?", "Who lays the eggs?", "What do drones do?")
PASSAGES = (
    "A colony of bees has one queen, who lays as many as two thousand eggs on a summer's day. Drones do nothing else.",
    "Honey keeps for years because it holds little water and much acid, in which nothing can grow.",
)


def test_earlier_and_concurrent_requests_change_no_token() -> None:
    model: Any = tiny_model(max_position_embeddings=2048).bfloat16()
    language_model = LanguageModel(model, byte_tokenizer(), name="tiny", reproducible=True)

    def ask(question: str) -> tuple[int, ...]:
        return language_model.generate(question, references=PASSAGES, max_new_tokens=30).tokens

    alone = [ask(question) for question in QUESTIONS]
    language_model.generate(PASSAGES[1], max_new_tokens=100)  # the recycling table learns here
    with forward_rows(model) as widths, ThreadPoolExecutor(3) as pool:
        assert list(pool.map(ask, QUESTIONS)) == alone
    prompts = [language_model.tokenize(question).count for question in QUESTIONS]
    assert sorted(width for width in widths if width != REPRODUCIBLE_ROWS) == sorted(prompts)
    batch = language_model.generate_batch(QUESTIONS, references=[PASSAGES] * 3, max_new_tokens=30)
    assert [completion.tokens for completion in batch] == alone


REFUSED = {
    "bloom": "does not accept it",
    "gemma2": "adds softcap to its scores",
    "gpt_oss": "adds s_aux to its scores",
    "mamba2": "Reproducible decoding",
}


@pytest.mark.parametrize("family", REFUSED)
def test_an_unsupported_model_is_refused_and_left_unchanged(family: str) -> None:
    model = tiny_model(family)
    before = implementation_of(model)
    with pytest.raises(ValueError, match=REFUSED[family]):
        steady(model, prompt_of(3))
    assert implementation_of(model) == before


class Sociable(torch.nn.Module):
    """A layer whose rounding depends on the neighbouring rows, as matrix products do on some machines."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, states: Tensor) -> Tensor:
        output: Tensor = self.layer(states)
        return output * (1 + states.abs().amax() * 2**-7)


def test_a_model_that_rounds_a_row_by_its_neighbours_is_refused() -> None:
    model: Any = tiny_model(seed=2).bfloat16()
    model.model.layers[1].mlp.up_proj = Sociable(model.model.layers[1].mlp.up_proj)
    with pytest.raises(
        ValueError, match=r"LlamaForCausalLM in torch\.bfloat16 on cpu rounds a row by the rows beside it"
    ):
        engine_of(model).reproducible_traits()
