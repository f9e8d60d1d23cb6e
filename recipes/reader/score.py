"""Scores a reader on examples of one passage each, with one forward pass per example.

If every token of the expected answer is the most likely one after its predecessors, greedy decoding emits exactly that
answer. So the share of such answers is that of greedy decoding, at the cost of a prefill.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from recipes.reader.encoding import encode_example
from recipes.reader.example import Question, TrainingExample
from recipes.reader.train import answer_logits


@dataclass(frozen=True, slots=True)
class Score:
    """Accuracy and refusal rates between 0 and 1.

    Attributes:
        answerable: Number of answerable questions.
        unanswerable: Number of the others.
        right: Rate of right first quotes to answerable questions.
        whole: Rate of completely right answers to them.
        wrongly_declined: Rate of declined answerable questions.
        declined: Rate of declined unanswerable questions.
    """

    answerable: int
    unanswerable: int
    right: float
    whole: float
    wrongly_declined: float
    declined: float

    @property
    def balanced(self) -> float:
        """Mean of ``right`` and ``declined``."""
        return (self.right + self.declined) / 2


def score(model: Any, tokenizer: Any, examples: Iterable[TrainingExample]) -> Score:
    """Score a model's greedy answers.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        examples: Examples of one passage each.
    """
    outcomes = [pair for example in examples for pair in _outcomes(model, tokenizer, example)]
    wanted = [one for question, one in outcomes if question.quotes]
    others = [one for question, one in outcomes if not question.quotes]
    return Score(
        answerable=len(wanted),
        unanswerable=len(others),
        right=_share([one.is_first for one in wanted]),
        whole=_share([one.is_whole for one in wanted]),
        wrongly_declined=_share([one.is_refusal for one in wanted]),
        declined=_share([one.is_whole for one in others]),
    )


@dataclass(frozen=True, slots=True)
class _Outcome:
    is_whole: bool
    is_first: bool
    is_refusal: bool


@torch.inference_mode()
def _outcomes(model: Any, tokenizer: Any, example: TrainingExample) -> list[tuple[Question, _Outcome]]:
    encoded = encode_example(example, tokenizer)
    logits = answer_logits(model, encoded, model.device)[0]
    predicted = logits.argmax(-1).cpu()
    refusal = tokenizer.encode(Question("").answer, add_special_tokens=False)[0]
    found, at = [], 0
    for question in example.questions:
        first = tokenizer.encode(question.quotes[0].line if question.quotes else "", add_special_tokens=False)
        length = len(tokenizer.encode(question.answer, add_special_tokens=False)) + 1
        same = (predicted[at : at + length] == encoded.targets[at : at + length]).tolist()
        outcome = _Outcome(all(same), bool(first) and all(same[: len(first)]), int(predicted[at]) == refusal)
        found.append((question, outcome))
        at += length
    return found


def _share(values: Sequence[bool]) -> float:
    return sum(values) / len(values) if values else 0.0
