"""Evaluation of relevance: accuracy of the best line, and ROC AUC of answerable against unanswerable questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from antiphon.pipelines.quotes import quotable_lines
from antiphon.pipelines.relevance import LineScores
from antiphon.retrieval import Passage
from recipes.relevance.examples import LineExample


@dataclass(frozen=True, slots=True)
class RelevanceFigures:
    """Figures over held-out questions.

    Attributes:
        answered: Number of questions that their passage answers.
        declined: Number of the others.
        right: Share of answered questions whose best line answers them.
        separated: Area under the ROC curve of the best line's score.
    """

    answered: int
    declined: int
    right: float
    separated: float


def relevance_figures(
    scores: Callable[[str, Sequence[Passage]], LineScores], asked: Sequence[LineExample]
) -> RelevanceFigures:
    """Compute the figures, with each question asked about its own passage.

    Args:
        scores: Scores the quotable lines of each passage.
        asked: Questions with their passages.

    Raises:
        ValueError: there are no answerable or no unanswerable questions.
    """
    right = 0
    answered: list[float] = []
    declined: list[float] = []
    for one in asked:
        lines = [quote.sentence for quote in quotable_lines([one.passage])[0]]
        [weights] = scores(one.question, [one.passage])
        best = max(range(len(lines)), key=weights.__getitem__)
        (answered if one.lines else declined).append(weights[best])
        right += lines[best] in one.lines
    if not answered or not declined:
        raise ValueError("Questions that are answered and questions that are not are needed; give more documents.")
    higher = sum((good > bad) + (good == bad) / 2 for good in answered for bad in declined)
    return RelevanceFigures(
        answered=len(answered),
        declined=len(declined),
        right=right / len(answered),
        separated=higher / (len(answered) * len(declined)),
    )
