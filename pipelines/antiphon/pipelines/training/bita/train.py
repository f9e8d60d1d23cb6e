"""Trains BiTA's prefix and mask tokens, with which a model guesses several tokens ahead. Knows nothing of prompts.

BiTA (Lin et al. 2024), section 3.1: the model is frozen, and learns from answers of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import cos, pi
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import DynamicCache

from antiphon.accel.drafting.drafters import BITA_FILE
from antiphon.accel.drafting.tree import Tree
from antiphon.accel.engines.torch.bita_cache import BitaCache
from antiphon.accel.engines.torch.bita_weights import BitaWeights, embed_tokens, initial_bita_weights
from antiphon.accel.engines.torch.engine import traits_of
from antiphon.accel.engines.torch.masks import additive_mask, attention_mask
from antiphon.pipelines.training.bita.answers import OwnAnswer
from antiphon.pipelines.training.loop import StepReport, train_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class BitaPlan:
    """How to train: ``steps`` updates on ``answers`` answers each, with up to ``starts`` consecutive starts of each.

    The paper has 16 prefix states a layer and 3 masks, and 0.1 of the prefix is dropped in training. The rate falls
    from ``learning_rate`` to zero as a cosine. What was learned is saved every ``save_every`` steps.
    """

    steps: int = 240
    answers: int = 6
    starts: int = 64
    learning_rate: float = 1e-2
    prefix: int = 16
    masks: int = 3
    dropout: float = 0.1
    seed: int = 1
    save_every: int = 10

    def __post_init__(self) -> None:
        for name in ("steps", "answers", "starts", "masks", "save_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1.")

    def rate(self, step: int) -> float:
        """The learning rate of update ``step``, from 0, as a share of the highest."""
        return (1 + cos(pi * step / self.steps)) / 2


@dataclass(frozen=True, slots=True)
class MaskGroups:
    """An answer, and where in it ``count`` groups of masks stand: group i sees the prompt and ``first + i`` tokens.

    The first mask of a group stands where the next token would. That one the model itself predicts, so the masks learn
    those after it: group i's masks j have the token ``first + i + 1 + j`` of the answer as their target.
    """

    answer: OwnAnswer
    first: int
    count: int


def train_bita(
    model: PreTrainedModel,
    answers: Sequence[OwnAnswer],
    out: Path,
    plan: BitaPlan,
    *,
    report: StepReport = lambda step, loss: None,
) -> Path:
    """Learn from the model's own answers; the file ``bita.safetensors`` in ``out`` has it, in bfloat16.

    A run that was cut off goes on from its last checkpoint, which lies in ``out`` until the end; with the same answers
    and plan it ends with the same file as one that was not. ``report`` is told the mean cross-entropy of all masks.

    Raises:
        ValueError: no answer is long enough, the model cannot verify trees, or ``out`` has a checkpoint of another
            plan.
    """
    usable = [answer for answer in answers if len(answer.answer) > plan.masks]
    if not usable:
        raise ValueError(f"None of {len(answers)} answers has more than {plan.masks} tokens; give more prompts.")
    if (traits := traits_of(model)).level != "tree":
        raise ValueError(f"BiTA verifies trees, which {type(model).__name__} cannot: {traits.reason}.")
    model.requires_grad_(False)
    learner = Learner(model, initial_bita_weights(model, prefix=plan.prefix, masks=plan.masks, seed=plan.seed))

    def parts(learner: Any, step: int, process: int, processes: int) -> Iterator[Tensor]:
        numbers = range(step * plan.answers * processes, (step + 1) * plan.answers * processes)
        examples = [mask_groups_of(usable, number, plan) for number in numbers]
        rows = plan.masks * sum(example.count for example in examples)
        for number, example in list(zip(numbers, examples, strict=True))[process::processes]:
            yield learner(example, plan.dropout, plan.seed + number) / rows

    def save(learner: Any, out: Path) -> None:
        notes = {"training": f"{len(usable)} answers, {plan}", "dtype": str(model.dtype)}
        learner.learned(notes).save(out / BITA_FILE)

    return train_weights(learner, plan, parts, out, save=save, report=report)


def mask_groups_of(answers: Sequence[OwnAnswer], number: int, plan: BitaPlan) -> MaskGroups:
    """The example of a number: every answer has its turn before one comes again, with starts drawn at random."""
    turn, place = divmod(number, len(answers))
    order = list(range(len(answers)))
    Random(f"{plan.seed} {turn}").shuffle(order)
    answer = answers[order[place]]
    starts = len(answer.answer) - plan.masks
    count = min(starts, plan.starts)
    return MaskGroups(answer, Random(f"{plan.seed} {number}").randrange(starts - count + 1), count)


class Learner(torch.nn.Module):
    """The weights that are learned; the model, which is not part of the module, stays as it is."""

    def __init__(self, model: PreTrainedModel, learned: BitaWeights) -> None:
        super().__init__()
        self.keys = torch.nn.Parameter(learned.keys.to(model.device))
        self.values = torch.nn.Parameter(learned.values.to(model.device))
        self.masks = torch.nn.Parameter(learned.masks.to(model.device))
        self._model = [model]  # in a list, so that torch does not take it for a part
        self._learned = learned

    def learned(self, notes: dict[str, str]) -> BitaWeights:
        """What has been learned so far, in bfloat16."""
        keys, values, masks = (each.detach().cpu().bfloat16() for each in (self.keys, self.values, self.masks))
        return replace(self._learned, keys=keys, values=values, masks=masks, notes=notes)

    def forward(self, example: MaskGroups, dropout: float = 0.0, seed: int = 0) -> Tensor:
        """The summed cross-entropy of a example's masks, in nats."""
        random = torch.Generator().manual_seed(seed)
        keys, values = (_dropped(each, dropout, random) for each in (self.keys, self.values))
        logits = mask_logits(
            self._model[0], replace(self._learned, keys=keys, values=values, masks=self.masks), example
        )
        answer = torch.tensor(example.answer.answer, device=logits.device)
        first = example.first + 1
        targets = answer[first : first + example.count + len(self.masks) - 1].unfold(0, len(self.masks), 1)
        return cross_entropy(logits.float(), targets.flatten(), reduction="sum")


def mask_logits(model: PreTrainedModel, learned: BitaWeights, example: MaskGroups) -> Tensor:
    """What the masks of a example predict, group by group, of shape (count * masks, vocab).

    The tokens are read once and without gradients: nothing that is learned reaches them.
    """
    count, masks, prompt = example.count, len(learned.masks), len(example.answer.prompt)
    tokens = [*example.answer.prompt, *example.answer.answer][: prompt + example.first + count - 1]
    visible = np.repeat(np.arange(count) + prompt + example.first, masks)
    positions = visible + np.tile(np.arange(masks), count)
    logits: Tensor = model(
        inputs_embeds=embed_tokens(model, [-1 - place for place in range(masks)] * count, learned),
        position_ids=torch.from_numpy(positions)[None].to(model.device),
        attention_mask=_sees(model, visible, positions, len(tokens), learned.prefix),
        past_key_values=BitaCache(_memory(model, tokens), learned),
        use_cache=True,
    ).logits[0]
    return logits


@torch.no_grad()
def _memory(model: PreTrainedModel, tokens: Sequence[int]) -> DynamicCache:
    """The keys and values of some tokens; all layers keep everything, for windows are in the masks."""
    cache = DynamicCache()
    least = {"logits_to_keep": 1} if traits_of(model).takes_logits_to_keep else {}
    ids = torch.tensor([tokens], device=model.device)
    model(input_ids=ids, past_key_values=cache, use_cache=True, **least)
    return cache


def _sees(
    model: PreTrainedModel, visible: NDArray[np.int64], positions: NDArray[np.int64], length: int, prefix: int
) -> Tensor | dict[str, Tensor]:
    """Who sees what: a mask sees ``visible`` of the ``length`` tokens, the masks before it in its group, the prefix."""
    traits = traits_of(model)
    own = (visible[:, None] == visible) & (positions[:, None] >= positions)
    rows = Tree(positions - length, own)
    seen = torch.arange(length) < torch.from_numpy(visible)[:, None]
    sees = {}
    for kind, reach in traits.attention_spans.items():
        columns = attention_mask(rows, reach, length=length)
        columns[:, :length] &= seen
        columns = torch.cat([columns, columns.new_ones(len(rows), prefix)], dim=1)[None, None].to(model.device)
        sees[kind] = columns if traits.takes_boolean_masks else additive_mask(columns, model.dtype)
    return sees if len(sees) > 1 else next(iter(sees.values()))


def _dropped(states: Tensor, chance: float, random: torch.Generator) -> Tensor:
    """The states with some of their numbers put to zero, and the others larger by as much (dropout)."""
    if not chance:
        return states
    kept = torch.rand(states.shape, generator=random) >= chance
    return states * kept.to(states.device) / (1 - chance)
