"""Training BiTA: the attention mask, the targets of the mask tokens, and resuming an interrupted run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import DynamicCache

from antiphon.accel.drafting.drafters import BITA_FILE
from antiphon.accel.engines.torch.bita_weights import BitaWeights, initial_bita_weights
from antiphon.accel.testing.tiny import EOS
from recipes.bita.answers import OwnAnswer
from recipes.bita.train import (
    BitaPlan,
    Learner,
    MaskGroups,
    mask_groups_of,
    mask_logits,
    train_bita,
)
from tests.families.table import tiny_model

pytestmark = pytest.mark.slow

PROMPT = (5, 6, 7)
ANSWER = OwnAnswer(PROMPT, (10, 11, 12, 13, 14))
PLAN = BitaPlan(steps=4, answers=2, starts=3, prefix=4, masks=2, save_every=2)


def loud(model: Any, masks: int = 2) -> BitaWeights:
    """Return random weights a hundred times larger than untrained ones, so that they change the logits clearly."""
    learned = initial_bita_weights(model, prefix=4, masks=masks)
    return replace(learned, keys=100 * learned.keys, values=100 * learned.values, masks=100 * learned.masks)


def one_group(model: Any, learned: BitaWeights, tokens: list[int], masks: int) -> Tensor:
    """Return the masks' logits after these tokens, by one causal forward pass of the tokens and one of the masks.

    The prefix comes first here, as in the paper, and is hidden from the tokens by a second, causal cache.
    """
    plain, whole = DynamicCache(), DynamicCache()
    model(torch.tensor([tokens]), past_key_values=plain)
    layers: list[Any] = plain.layers
    for layer, states in enumerate(layers):
        keys, values = (torch.cat([own[None], cached], dim=2) for own, cached in (
            (learned.keys[layer], states.keys), (learned.values[layer], states.values)))  # fmt: skip
        whole.update(keys, values, layer)
    positions = torch.arange(len(tokens), len(tokens) + masks)[None]
    logits: Tensor = model(
        inputs_embeds=learned.masks[:masks][None], past_key_values=whole, position_ids=positions
    ).logits[0]
    return logits


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3"])
def test_the_loss_is_that_of_separate_forwards_with_ordinary_causal_masks(family: str) -> None:
    model = tiny_model(family).double()
    learned = loud(model).to_model(model)
    example = MaskGroups(ANSWER, 0, 3)
    separate = [one_group(model, learned, [*PROMPT, *ANSWER.answer[:start]], 2) for start in range(3)]
    torch.testing.assert_close(mask_logits(model, learned, example), torch.cat(separate), atol=1e-9, rtol=1e-9)
    targets = torch.tensor([11, 12, 12, 13, 13, 14])  # group i skips 10 + i, the model's own token
    loss = Learner(model, learned)(example)
    torch.testing.assert_close(loss, cross_entropy(torch.cat(separate).float(), targets, reduction="sum"))


@pytest.mark.parametrize("family", ["mistral", "gemma3"])
def test_masks_look_as_far_back_as_the_models_windows_reach(family: str) -> None:
    model = tiny_model(family).double()
    learned = loud(model).to_model(model)
    answer = OwnAnswer(tuple(range(10, 40)), tuple(range(40, 60)))
    together = mask_logits(model, learned, MaskGroups(answer, 0, 18))
    for start in (0, 9, 17):
        alone = mask_logits(model, learned, MaskGroups(answer, start, 1))
        torch.testing.assert_close(together[2 * start : 2 * start + 2], alone, atol=1e-9, rtol=1e-9)
    far = replace(answer, prompt=(99, *answer.prompt[1:]))  # farther away than two layers with windows of 12 can see
    if family == "mistral":
        moved = mask_logits(model, learned, MaskGroups(far, 17, 1))
        torch.testing.assert_close(together[34:36], moved, atol=1e-9, rtol=1e-9)


def test_only_what_is_learned_gets_a_gradient() -> None:
    model = tiny_model().requires_grad_(False)
    learner = Learner(model, loud(model))
    learner(MaskGroups(ANSWER, 0, 3)).backward()
    assert {name for name, weight in learner.named_parameters()} == {"keys", "values", "masks"}
    for weight in learner.parameters():
        assert weight.grad is not None
        assert weight.grad.flatten(1).any(1).all()
    assert all(weight.grad is None for weight in model.parameters())


def test_starts_are_consecutive_and_every_answer_has_its_turn() -> None:
    answers = [OwnAnswer(PROMPT, tuple(range(length))) for length in (3, 9, 40)]
    plan = BitaPlan(starts=8, masks=2)
    for turn in range(40):
        examples = [mask_groups_of(answers, 3 * turn + place, plan) for place in range(3)]
        assert sorted(len(example.answer.answer) for example in examples) == [3, 9, 40]
        for example in examples:
            assert example.count == min(8, len(example.answer.answer) - 2)
            assert 0 <= example.first <= len(example.answer.answer) - 2 - example.count
    firsts = {mask_groups_of(answers[2:], number, plan).first for number in range(300)}
    assert firsts == set(range(31))


ANSWERS = [OwnAnswer(PROMPT, (*range(start, start + 9), EOS)) for start in (20, 40, 60)]


def test_what_was_learned_is_saved_with_its_model_and_its_plan(tmp_path: Path) -> None:
    losses: list[float] = []
    plan = replace(PLAN, steps=30, learning_rate=0.1)
    train_bita(tiny_model(), ANSWERS, tmp_path, plan, report=lambda _, loss: losses.append(loss))
    assert sum(losses[-5:]) < 0.95 * sum(losses[:5])
    learned = BitaWeights.load(tmp_path / BITA_FILE)
    learned.check(tiny_model())
    assert learned.keys.dtype == torch.bfloat16
    assert "steps=30" in learned.notes["training"]
    assert [path.name for path in tmp_path.iterdir()] == [BITA_FILE]


_KILLED = """
import os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from recipes.bita.train import train_bita
from tests.pipelines.bita.test_bita_training import ANSWERS, PLAN
train_bita(tiny_model(), ANSWERS, Path(sys.argv[1]), PLAN,
      report=lambda step, loss: os.kill(os.getpid(), signal.SIGKILL) if step == 3 else None)
"""


def test_a_run_that_was_killed_ends_with_the_file_of_one_that_was_not(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path / "cut")], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    steps: list[int] = []
    train_bita(tiny_model(), ANSWERS, tmp_path / "cut", PLAN, report=lambda step, loss: steps.append(step))
    train_bita(tiny_model(), ANSWERS, tmp_path / "whole", PLAN)
    assert steps == [3, 4]
    one, other = ((tmp_path / name / BITA_FILE).read_bytes() for name in ("cut", "whole"))
    assert one == other


def test_a_checkpoint_of_another_plan_is_refused(tmp_path: Path) -> None:
    def cut(step: int, loss: float) -> None:
        if step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_bita(tiny_model(), ANSWERS, tmp_path, PLAN, report=cut)
    with pytest.raises(ValueError, match="another plan"):
        train_bita(tiny_model(), ANSWERS, tmp_path, replace(PLAN, steps=9))


def test_answers_that_are_too_short_and_models_without_trees_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="None of 1 answers has more than 2 tokens"):
        train_bita(tiny_model(), [OwnAnswer(PROMPT, (1, EOS))], tmp_path, PLAN)
    with pytest.raises(ValueError, match="verifies trees"):
        train_bita(tiny_model("bloom"), ANSWERS, tmp_path, PLAN)
    with pytest.raises(ValueError, match="starts is 0"):
        BitaPlan(starts=0)
