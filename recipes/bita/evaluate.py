"""Evaluation of BiTA: tokens per step and acceptance rates on a model's own answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import torch

from antiphon.accel.drafting.drafters.bita import Shape, level_widths
from recipes.bita.answers import OwnAnswer
from recipes.bita.train import MaskGroups, mask_logits

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from antiphon.accel.engines.torch.bita_weights import BitaWeights

TOGETHER = 64
"""Number of mask groups per forward pass."""

WIDEST = 5
"""Candidates of the first mask, as in `Bita`."""

Ranks = list[list[int]]


@dataclass(frozen=True, slots=True)
class GuessFigures:
    """Figures of trained mask tokens.

    Attributes:
        answers: Number of answers.
        tokens: Number of their tokens after the first.
        tokens_per_step: Tokens per step without the prefill, by shape of the draft tree.
        best: ``best[j][k]`` is the share of mask j's best k + 1 candidates that contain the true token.
    """

    answers: int
    tokens: int
    tokens_per_step: dict[str, float]
    best: list[list[float]]


@torch.no_grad()
def guess_figures(
    model: PreTrainedModel,
    learned: BitaWeights,
    answers: Sequence[OwnAnswer],
    *,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> GuessFigures:
    """Replay greedy answers as decoding with `Bita` alone would emit them, with an unlimited budget.

    Every mask group is computed once, many in one forward pass, because the draft tree does not affect it.

    Args:
        model: The model.
        learned: Trained weights.
        answers: The model's own answers.
        report: Called with done and total.

    Raises:
        ValueError: no answer has two tokens, or the weights are for another model.
    """
    learned.check(model)
    learned = learned.to_model(model)
    followed = [answer for answer in answers if len(answer.answer) > 1]
    if not followed:
        raise ValueError(f"None of {len(answers)} answers has two tokens; a first step needs a second one.")
    said: list[Ranks] = []
    for done, answer in enumerate(followed, 1):
        said.append(ranks(model, learned, answer))
        report(done, len(followed))
    masks, tokens = len(learned.masks), sum(len(answer.answer) - 1 for answer in followed)
    per_step = {
        shape: tokens / sum(steps(each, level_widths(WIDEST, shape, masks)) for each in said)
        for shape in get_args(Shape)
    }
    return GuessFigures(len(followed), tokens, per_step, [_best(said, place) for place in range(masks)])


def ranks(model: PreTrainedModel, learned: BitaWeights, answer: OwnAnswer) -> Ranks:
    """For the mask group after each token but the last, return the rank of the true token at each mask.

    The group after ``answer[:s]`` predicts from ``answer[s + 1]`` on; its ranks end with the answer.

    Args:
        model: The model.
        learned: Trained weights.
        answer: One of the model's own answers.
    """
    said: Ranks = []
    masks, length = len(learned.masks), len(answer.answer)
    for first in range(0, length - 1, TOGETHER):
        count = min(TOGETHER, length - 1 - first)
        logits = mask_logits(model, learned, MaskGroups(answer, first, count)).view(count, masks, -1)
        for start, group in enumerate(logits, first + 1):
            truth = torch.tensor(answer.answer[start : start + masks], device=group.device)
            lines = group[: len(truth)]
            said.append((lines > lines.gather(1, truth[:, None])).sum(1).tolist())
    return said


def steps(true_ranks: Ranks, widths: Sequence[int]) -> int:
    """Return the number of steps after the prefill. A step drafts from the mask group behind the last accepted token.

    A candidate is accepted if its rank is below the mask's width; only the best candidate has children.

    Args:
        true_ranks: Ranks of the true tokens, from `ranks`.
        widths: Number of candidates per mask.
    """
    at = count = 0
    while at < len(true_ranks):
        held = 0
        for rank, width in zip(true_ranks[at], widths, strict=False):
            held += rank < width
            if rank:
                break
        at += held + 1
        count += 1
    return count


def _best(said: Sequence[Ranks], place: int) -> list[float]:
    known = [group[place] for each in said for group in each if len(group) > place]
    return [sum(rank <= best for rank in known) / max(1, len(known)) for best in range(WIDEST)]
