"""Passage prompts and scorers with known values, for tests of passage selection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antiphon.accel.text.messages import CountedPrompt
from antiphon.pipelines.fitted_prompt import FittedPrompt
from antiphon.pipelines.passage_selection import JoinPrompts, SelectedPrompt, select_passages
from antiphon.pipelines.prompt import REFUSAL, Prompt
from antiphon.pipelines.quotes import quotes_of
from antiphon.pipelines.relevance import LineScorer
from antiphon.retrieval import Passage

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


def relevance_of(relevance_by_word: Mapping[str, float]) -> LineScorer:
    """Return a scorer with known values: of lines that contain a word; of other lines it is 0."""

    def relevance(lines: Sequence[tuple[Passage, str]]) -> list[float]:
        return [next((score for word, score in relevance_by_word.items() if word in text), 0.0) for _, text in lines]

    return relevance


def select(
    prompts: Sequence[FittedPrompt], join: JoinPrompts = never_join, **relevance_by_word: float
) -> SelectedPrompt:
    """Select passages for a question whose words are all known.

    Args:
        prompts: one prompt for each passage.
        join: see `select_passages`.
        **relevance_by_word: see `relevance_of`.
    """
    return select_passages("", prompts, relevance_of(relevance_by_word), join=join)
