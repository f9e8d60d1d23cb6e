"""Measures BiTA: how many tokens per step it brings on a model's own answers. Knows nothing of training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import torch

from antiphon.accel.drafting.drafters.bita import Shape, level_widths
from antiphon.pipelines.training.bita.answers import OwnAnswer
from antiphon.pipelines.training.bita.train import MaskGroups, mask_logits

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from antiphon.accel.engines.torch.bita_weights import BitaWeights

TOGETHER = 64
"""So many groups of masks are asked in one forward."""

WIDEST = 5
"""The guesses of the first mask, as `Bita` makes them."""

Ranks = list[list[int]]


@dataclass(frozen=True, slots=True)
class GuessFigures:
    """``tokens_per_step``, without the prefill, for each shape of tree, and how often the truth is among the ``best``.

    ``best[j][k]`` is the share of mask j's best k + 1 guesses that have the true token among them.
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
    """Follow greedy answers as decoding with `Bita` alone would have made them, with a budget that is never too small.

    Every group of masks is asked once, many in one forward: a group says the same whatever draft it stands in.

    Raises:
        ValueError: there is no answer of two tokens or more, or it was learned for another model.
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
    """For the group after every token but the last, how many tokens each mask thinks likelier than the true one.

    The group after ``answer[:s]`` guesses from ``answer[s + 1]`` on, so at the answer's end some masks have no truth:
    the ranks of a group end with the answer.
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


def steps(said: Ranks, wide: Sequence[int]) -> int:
    """How many forwards after the prefill's an answer takes: the group of the last accepted token makes the next draft.

    A guess holds while it is among the mask's ``wide`` best; only the best one is gone on from.
    """
    at = count = 0
    while at < len(said):
        held = 0
        for rank, width in zip(said[at], wide, strict=False):
            held += rank < width
            if rank:
                break
        at += held + 1
        count += 1
    return count


def _best(said: Sequence[Ranks], place: int) -> list[float]:
    known = [group[place] for each in said for group in each if len(group) > place]
    return [sum(rank <= best for rank in known) / max(1, len(known)) for best in range(WIDEST)]
