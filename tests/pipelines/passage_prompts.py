"""Passage prompts and scorers with known values, for tests of passage selection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antiphon.accel.text.messages import CountedPrompt
from antiphon.pipelines.fitted_prompt import FittedPrompt
from antiphon.pipelines.passage_selection import (
    JoinPrompts,
    LineScorers,
    SelectedPrompt,
    select_passages,
)
from antiphon.pipelines.prompt import REFUSAL, Prompt
from antiphon.pipelines.quotes import quotes_of
from antiphon.retrieval import Passage
from tests.pipelines.scripted import Scripted

WAX, HONEY = "[1] Wax melts.", "[1] Honey keeps for years."


def never_join(passages: Sequence[Passage]) -> None:
    """Never join passages in one prompt."""


def prompts_of(*lines: str) -> list[FittedPrompt]:
    """Return one prompt for each text, which may have several lines."""
    return [
        FittedPrompt(
            (Passage.at("a.md", number, text),),
            Prompt("?", answers=(REFUSAL, text), quotes=quotes_of(text)),
            CountedPrompt(f"?{number}", 1),
        )
        for number, text in enumerate(lines)
    ]


def joined_prompt(passages: Sequence[Passage]) -> FittedPrompt:
    """Return one prompt of several passages."""
    return FittedPrompt(tuple(passages), Prompt("all"), CountedPrompt("all", 1))


def lines_of(*prompts: FittedPrompt) -> list[str]:
    """Return the lines that answers to these prompts may quote."""
    return [quote.line for each in prompts for quote in each.prompt.quotes]


def scorers_of(relevance_by_word: Mapping[str, float], similarity: float = 0.5) -> LineScorers:
    """Return scorers with known values.

    Args:
        relevance_by_word: the relevance of lines that contain a word; of other lines it is 0.
        similarity: the similarity of all lines.
    """

    def relevance(lines: Sequence[tuple[Passage, str]]) -> list[float]:
        return [next((score for word, score in relevance_by_word.items() if word in text), 0.0) for _, text in lines]

    return LineScorers(relevance, lambda lines: [similarity for _ in lines])


def select(
    prompts: Sequence[FittedPrompt],
    log_probabilities: Mapping[str, float],
    join: JoinPrompts = never_join,
    **relevance_by_word: float,
) -> SelectedPrompt:
    """Select passages with a scripted model.

    Args:
        prompts: one prompt for each passage.
        log_probabilities: those of lines; that of a refusal is -9 by default.
        join: see `select_passages`.
        **relevance_by_word: see `scorers_of`.
    """
    return select_passages(
        Scripted({REFUSAL: -9.0, **log_probabilities}), prompts, scorers_of(relevance_by_word), join=join
    )
