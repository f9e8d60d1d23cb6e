"""Trains BiTA's prefix and mask tokens, with which a model predicts several tokens ahead.

BiTA (Lin et al. 2024), section 3.1: the model is frozen, and the training data are its own answers.
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
from antiphon.accel.engines.torch.attention import additive_mask, attention_mask
from antiphon.accel.engines.torch.bita_weights import BitaCache, BitaWeights, embed_tokens
from antiphon.accel.engines.torch.engine import traits_of
from recipes.bita.answers import OwnAnswer
from recipes.bita.initial import initial_bita_weights, save_bita_weights
from recipes.training_loop import StepReport, train_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class BitaPlan:
    """Plan of a training run.

    The paper uses 16 prefix states per layer, 3 masks, and a prefix dropout of 0.1 in training.

    Attributes:
        steps: Number of updates.
        answers: Answers per update.
        starts: Maximum number of consecutive mask groups per answer.
        learning_rate: Peak learning rate; it falls to zero as a cosine.
        prefix: Prefix states per layer.
        masks: Number of mask tokens.
        dropout: Dropout of the prefix.
        seed: Random seed.
        save_every: Updates between checkpoints.
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
        """Return the learning rate of update ``step`` (from 0) relative to the peak."""
        return (1 + cos(pi * step / self.steps)) / 2


@dataclass(frozen=True, slots=True)
class MaskGroups:
    """Mask groups in an answer: group i sees the prompt and the answer's first ``first + i`` tokens.

    The first mask of a group is at the position of the next token. The model itself predicts that token, so the masks
    predict those after it: the target of group i's mask j is the answer's token ``first + i + 1 + j``.

    Attributes:
        answer: The answer.
        first: Number of answer tokens that the first group sees.
        count: Number of groups.
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
    """Train on the model's own answers; write ``bita.safetensors`` in bfloat16 to ``out``.

    An interrupted run resumes from its last checkpoint in ``out`` and, with the same answers and plan, ends with the
    same file as an uninterrupted one.

    Args:
        model: The model, which is frozen.
        answers: Its own answers.
        out: Folder to write to.
        plan: Training plan.
        report: Called with step and mean cross-entropy of all masks.

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
        save_bita_weights(learner.learned(notes), out / BITA_FILE)

    return train_weights(learner, plan, parts, out, save=save, report=report)


def mask_groups_of(answers: Sequence[OwnAnswer], number: int, plan: BitaPlan) -> MaskGroups:
    """Return the training example with this number, at a random start; all answers are used before one repeats.

    Args:
        answers: The model's own answers.
        number: Number of the example.
        plan: Training plan.
    """
    turn, place = divmod(number, len(answers))
    order = list(range(len(answers)))
    Random(f"{plan.seed} {turn}").shuffle(order)
    answer = answers[order[place]]
    starts = len(answer.answer) - plan.masks
    count = min(starts, plan.starts)
    return MaskGroups(answer, Random(f"{plan.seed} {number}").randrange(starts - count + 1), count)


class Learner(torch.nn.Module):
    """The trainable weights; the frozen model is not part of the module.

    Args:
        model: The model.
        learned: Initial weights.
    """

    def __init__(self, model: PreTrainedModel, learned: BitaWeights) -> None:
        super().__init__()
        self.keys = torch.nn.Parameter(learned.keys.to(model.device))
        self.values = torch.nn.Parameter(learned.values.to(model.device))
        self.masks = torch.nn.Parameter(learned.masks.to(model.device))
        self._model = [model]  # in a list, so that torch does not register it as a submodule
        self._learned = learned

    def learned(self, notes: dict[str, str]) -> BitaWeights:
        """Return the current weights in bfloat16, with ``notes`` as metadata."""
        keys, values, masks = (each.detach().cpu().bfloat16() for each in (self.keys, self.values, self.masks))
        return replace(self._learned, keys=keys, values=values, masks=masks, notes=notes)

    def forward(self, example: MaskGroups, dropout: float = 0.0, seed: int = 0) -> Tensor:
        """Return the summed cross-entropy of an example's masks in nats.

        Args:
            example: Mask groups.
            dropout: Dropout of the prefix.
            seed: Seed of the dropout.
        """
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
    """Return the masks' logits, group by group, of shape (count * masks, vocab).

    The prompt and answer are processed once and without gradients, because trained weights do not affect them.

    Args:
        model: The model.
        learned: Prefix and masks.
        example: Mask groups.
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
    """Return the KV cache of tokens; all layers keep all tokens, because sliding windows are in the masks."""
    cache = DynamicCache()
    least = {"logits_to_keep": 1} if traits_of(model).takes_logits_to_keep else {}
    ids = torch.tensor([tokens], device=model.device)
    model(input_ids=ids, past_key_values=cache, use_cache=True, **least)
    return cache


def _sees(
    model: PreTrainedModel, visible: NDArray[np.int64], positions: NDArray[np.int64], length: int, prefix: int
) -> Tensor | dict[str, Tensor]:
    """Return the attention mask: a mask token sees ``visible`` tokens, earlier masks of its group, and the prefix."""
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
    """Apply dropout."""
    if not chance:
        return states
    kept = torch.rand(states.shape, generator=random) >= chance
    return states * kept.to(states.device) / (1 - chance)
