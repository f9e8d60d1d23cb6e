"""How often the line that answers is the one of its passage that seems to, and whether refusals seem worse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphon.pipelines.quotes import quotable_lines
from antiphon.pipelines.relevance import Relevance
from recipes.relevance.examples import LineExample


@dataclass(frozen=True, slots=True)
class RelevanceFigures:
    """``right`` is the share of questions whose best line of the passage answers them.

    ``separated`` is the chance that a question that the passage answers has a higher best line than one that it does
    not answer (the area under the ROC curve).
    """

    answered: int
    declined: int
    right: float
    separated: float


def relevance_figures(relevance: Relevance, asked: Sequence[LineExample]) -> RelevanceFigures:
    """The figures of questions, each asked about its own passage.

    Raises:
        ValueError: no question is answered, or each is.
    """
    right = 0
    answered: list[float] = []
    declined: list[float] = []
    for one in asked:
        lines = [quote.sentence for quote in quotable_lines([one.passage])[0]]
        weights = relevance.to(one.question)([(one.passage, line) for line in lines])
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
