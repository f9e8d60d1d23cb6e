"""Reproducible requests: repeated in half precision they give the same text."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest
import torch

from antiphon.accel import LanguageModel
from antiphon.accel.decoding.stats import Step
from antiphon.accel.drafting.drafters import RecyclingTable
from antiphon.accel.generate import stream
from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model

QUESTIONS = ("How long does honey keep?", "Who lays the eggs?", "What do drones do?")
PASSAGES = (
    "A colony of bees has one queen, who lays as many as two thousand eggs on a summer's day. Drones do nothing else.",
    "Honey keeps for years because it holds little water and much acid, in which nothing can grow.",
)
TOKENS = 30


@cache
def tiny(seed: int = 0) -> Any:
    model: Any = tiny_model(seed=seed, max_position_embeddings=2048)
    return model.to(torch.bfloat16)


def shapes(steps: list[Step]) -> list[tuple[Any, ...]]:
    """Return the fields of each step that are not times."""
    return [(step.tokens, step.drafted, step.accepted, step.padded, step.prefilled, step.finish) for step in steps]


def decode(question: str, **options: Any) -> list[tuple[Any, ...]]:
    prompt = byte_tokenizer().encode(question)
    asked: Any = {"max_new_tokens": TOKENS, "eos_token_id": None, "do_sample": False, **options}
    return shapes(list(stream(tiny(), prompt, tokenizer=byte_tokenizer(), references=PASSAGES, **asked)))


def test_every_forward_pass_of_a_repeated_request_is_the_same_whatever_ran_before() -> None:
    first = [decode(question, reproducible=True) for question in QUESTIONS]
    decode(PASSAGES[1], max_new_tokens=100)  # costs and acceptance rates are learned here
    assert [decode(question, reproducible=True) for question in QUESTIONS] == first
    assert any(drafted for steps in first for _, drafted, *_ in steps)


def test_concurrent_requests_share_no_forward_pass_and_generate_what_each_generates_alone() -> None:
    model = LanguageModel(tiny(), byte_tokenizer(), name="tiny", reproducible=True)

    def ask(question: str) -> tuple[Any, ...]:
        completion = model.generate(question, references=PASSAGES, max_new_tokens=TOKENS)
        return completion.tokens, completion.origins, completion.steps.drafted

    alone = [ask(question) for question in QUESTIONS]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(ask, QUESTIONS)) == alone
    batch = model.generate_batch(QUESTIONS, references=[PASSAGES] * len(QUESTIONS), max_new_tokens=TOKENS)
    assert [(each.tokens, each.origins, each.steps.drafted) for each in batch] == alone


def test_nothing_is_learned_from_or_for_other_requests() -> None:
    model = LanguageModel(tiny(), byte_tokenizer(), name="tiny", reproducible=True)
    asked: Any = {"max_new_tokens": TOKENS, "num_draft_tokens": 16}
    for drafter in ("blend", "recycling"):
        first = model.generate(QUESTIONS[0], drafter=drafter, **asked).origins
        assert model.generate(QUESTIONS[0], drafter=drafter, **asked).origins == first
    assert model.recycling_table is not None
    assert model.recycling_table.size == 0
    remembering = LanguageModel(tiny(), byte_tokenizer(), name="tiny")
    first = remembering.generate(QUESTIONS[0], **asked).origins
    assert remembering.generate(QUESTIONS[0], **asked).origins != first


def test_a_shared_recycling_table_is_refused() -> None:
    with pytest.raises(ValueError, match="recycling is a table that remembers other requests"):
        LanguageModel(tiny(), byte_tokenizer(), name="tiny", reproducible=True, recycling=RecyclingTable("tiny"))
    model = LanguageModel(tiny(), byte_tokenizer(), name="tiny", reproducible=True)
    with pytest.raises(ValueError, match="recycling is a table that remembers other requests"):
        model.generate("Who?", recycling=RecyclingTable("tiny"))
