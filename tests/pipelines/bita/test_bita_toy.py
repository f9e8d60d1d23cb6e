"""BiTA on a toy language: training, the prefix and the draft tree each increase the tokens per step."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import pytest
import torch

from antiphon.accel.decoding.stats import Step
from antiphon.accel.drafting.drafters import BITA_FILE, Bita
from antiphon.accel.engines.torch.bita_weights import BitaWeights, initial_bita_weights
from antiphon.accel.generate import generate
from antiphon.accel.testing.tiny import tiny_model
from recipes.bita.answers import OwnAnswer
from recipes.bita.evaluate import WIDEST, guess_figures, ranks, steps
from recipes.bita.train import BitaPlan, train_bita

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

VOCAB_SIZE, PHRASES, START, LENGTH = 96, 12, 12, 64


@cache
def language() -> list[tuple[list[int], tuple[int, int]]]:
    """Return the phrases of the language: the tokens of each (4 to 8) and the indices of the two that may follow it."""
    random = Random(1)
    phrases = [random.choices(range(VOCAB_SIZE), k=random.randint(4, 8)) for _ in range(PHRASES)]
    return [(phrase, (random.randrange(PHRASES), random.randrange(PHRASES))) for phrase in phrases]


def spoken(random: Random, length: int) -> list[int]:
    """Return random tokens of the language that start in the middle of a phrase."""
    text: list[int] = []
    phrase = random.randrange(PHRASES)
    while len(text) < length + 8:
        tokens, following = language()[phrase]
        text += tokens
        phrase = random.choice(following)
    start = random.randrange(8)
    return text[start : start + length]


@cache
def speaker() -> Any:
    """Return a tiny model trained on the language."""
    none: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    model = tiny_model(vocab_size=VOCAB_SIZE, hidden_size=48, **none)
    random = Random(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model.train()
    for _ in range(260):
        ids = torch.tensor([spoken(random, 40) for _ in range(16)])
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@cache
def answers(seed: int, count: int) -> list[OwnAnswer]:
    """Return the model's own greedy answers to random prompts."""
    random = Random(seed)
    prompts = torch.tensor([spoken(random, START) for _ in range(count)])
    said = speaker().generate(prompts, max_new_tokens=LENGTH, do_sample=False)[:, START:]
    return [OwnAnswer(tuple(one), tuple(two)) for one, two in zip(prompts.tolist(), said.tolist(), strict=True)]


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BitaWeights]:
    out = tmp_path_factory.mktemp("toy")
    plan: dict[str, Any] = {"steps": 150, "answers": 3, "starts": 61, "learning_rate": 3e-2}
    for name, prefix in (("deep", 8), ("masks only", 0)):
        train_bita(speaker(), answers(3, 128), out / name, BitaPlan(prefix=prefix, **plan))
    return {
        "deep": BitaWeights.load(out / "deep" / BITA_FILE),
        "masks only": BitaWeights.load(out / "masks only" / BITA_FILE),
        "untrained": initial_bita_weights(speaker(), prefix=8),
    }


def test_training_the_prefix_and_the_tree_each_make_steps_longer(learned: dict[str, BitaWeights]) -> None:
    found = {name: guess_figures(speaker(), each, answers(4, 30)).tokens_per_step for name, each in learned.items()}
    assert found["deep"]["triangle"] > found["untrained"]["triangle"] + 0.2, found
    assert found["deep"]["triangle"] > found["masks only"]["triangle"], found
    assert found["deep"]["chain"] < found["deep"]["triangle"] <= found["deep"]["rectangle"], found


@pytest.mark.parametrize("shape", ["triangle", "chain"])
def test_decoding_takes_the_steps_that_the_examination_counts(shape: Any, learned: dict[str, BitaWeights]) -> None:
    drafter = Bita(learned["deep"], WIDEST, shape=shape)
    for answer in answers(4, 30)[:3]:
        taken: list[Step] = []
        output: Any = generate(
            speaker(), [*answer.prompt], drafter=lambda: drafter, num_draft_tokens=60, on_step=taken.append,
            max_new_tokens=LENGTH + 12, do_sample=False,
        )  # fmt: skip
        assert tuple(output[0, START : START + LENGTH].tolist()) == answer.answer
        followed = [count for count in _starts(taken) if count < LENGTH]  # steps after the recorded answer do not count
        assert len(followed) - 1 == steps(ranks(speaker(), learned["deep"], answer), drafter.level_widths)


def _starts(taken: list[Step]) -> list[int]:
    """Return the number of emitted tokens before each step."""
    starts = [0]
    for step in taken:
        starts.append(starts[-1] + len(step.tokens))
    return starts[:-1]
