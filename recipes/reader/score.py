"""Score: what a model would say greedily to examples of one passage, told from one forward each. Knows no training.

Where every token of the wanted answer is the likeliest one behind those before it, greedy decoding says that answer
and no other; so the share of such answers is that of decoding, at the cost of reading.
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
    """Shares of 1: of the answerable questions the first quote ``right``, and the ``declined``; of the others declined.

    ``balanced`` is the mean of what is right of both kinds.
    """

    answerable: int
    unanswerable: int
    right: float
    whole: float
    wrongly_declined: float
    declined: float

    @property
    def balanced(self) -> float:
        """The mean of the right answers' share and the right refusals' share."""
        return (self.right + self.declined) / 2


def score(model: Any, tokenizer: Any, examples: Iterable[TrainingExample]) -> Score:
    """The greedy answers of a model to examples of one passage each."""
    told = [pair for example in examples for pair in _told(model, tokenizer, example)]
    wanted = [one for question, one in told if question.quotes]
    others = [one for question, one in told if not question.quotes]
    return Score(
        answerable=len(wanted),
        unanswerable=len(others),
        right=_share([one.is_first for one in wanted]),
        whole=_share([one.is_whole for one in wanted]),
        wrongly_declined=_share([one.is_refusal for one in wanted]),
        declined=_share([one.is_whole for one in others]),
    )


@dataclass(frozen=True, slots=True)
class _Told:
    is_whole: bool
    is_first: bool
    is_refusal: bool


@torch.inference_mode()
def _told(model: Any, tokenizer: Any, example: TrainingExample) -> list[tuple[Question, _Told]]:
    encoded = encode_example(example, tokenizer)
    logits = answer_logits(model, encoded, model.device)[0]
    said = logits.argmax(-1).cpu()
    refusal = tokenizer.encode(Question("").answer, add_special_tokens=False)[0]
    found, at = [], 0
    for question in example.questions:
        first = tokenizer.encode(question.quotes[0].line if question.quotes else "", add_special_tokens=False)
        length = len(tokenizer.encode(question.answer, add_special_tokens=False)) + 1
        same = (said[at : at + length] == encoded.targets[at : at + length]).tolist()
        told = _Told(all(same), bool(first) and all(same[: len(first)]), int(said[at]) == refusal)
        found.append((question, told))
        at += length
    return found


def _share(values: Sequence[bool]) -> float:
    return sum(values) / len(values) if values else 0.0
