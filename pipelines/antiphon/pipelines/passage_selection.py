"""Selects the lines of the passages that answer a question, or decides that there is no answer.

The quotable lines of all passages are scored by their relevance to the question (two sentence encoders, see
`relevance`); no language model is needed. The answer starts with the best lines, or is a refusal if none is good
enough. docs/answers.md says what each signal adds.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from antiphon.pipelines.answer_lines import CandidateLine, answer_lines
from antiphon.pipelines.fitted_prompt import FittedPrompt
from antiphon.pipelines.follow_up import content_stems
from antiphon.pipelines.prompt import REFUSAL, prompt_format, reader_prompt
from antiphon.pipelines.quotes import Quote
from antiphon.pipelines.relevance import LineScorer
from antiphon.pipelines.selection_rules import RULES, SelectionRules
from antiphon.retrieval import Passage
from antiphon.retrieval.document_role import name_words

if TYPE_CHECKING:
    from antiphon.accel import TextModel

LETTERS_PER_TOKEN = 4
"""Estimated letters per token, for models whose tokenizer only their server has."""

_QUESTION = re.compile(r"\w[*_\"'”’]*[?？؟][?!*_\"'”’)]*$")  # code and patterns do not end like this


def selects_passages(language_model: TextModel) -> bool:
    """Return whether passages and lines are selected for this model: its prompt format is "reader".

    Raises:
        ValueError: the model's configuration names an unknown prompt format.
    """
    return prompt_format(language_model) is reader_prompt


@dataclass(frozen=True, slots=True)
class SelectedPrompt:
    """The prompt of the selected passages, and the options of `LanguageModel.stream`.

    The options include ``response_prefix``, the quotes that the answer starts with as text.
    """

    fitted_prompt: FittedPrompt
    options: Mapping[str, Any] = field(default_factory=dict)
    quotes: tuple[Quote, ...] = ()


JoinPrompts = Callable[[Sequence[Passage]], FittedPrompt | None]
"""Makes one prompt of several passages, or returns None if they do not fit into one."""


def select_passages(
    question: str,
    prompts: Sequence[FittedPrompt],
    relevance: LineScorer,
    *,
    count_tokens: Callable[[str], int] = lambda text: len(text.split()),
    join: JoinPrompts = lambda passages: None,
    rules: SelectionRules = RULES,
    **generation: Any,
) -> SelectedPrompt:
    """Select the prompt of the best lines and let its answer start with them, or with a refusal.

    If ``generation`` sets the form or the beginning of the answer, only the prompt is selected.

    Args:
        question: the question as it is understood without the conversation.
        prompts: one prompt for each passage.
        relevance: scores lines.
        count_tokens: counts the tokens of a line, whose sum must not exceed ``max_new_tokens``; by default its words.
        join: makes one prompt if lines of several passages are quoted.
        rules: weights and thresholds.
        **generation: options of `LanguageModel.stream`.
    """
    lines = candidate_lines(prompts, relevance)
    if not lines:
        return SelectedPrompt(prompts[0], generation)
    best, *others = lines
    selected = prompts[best.prompt_index]
    if generation.get("json_schema") is not None or generation.get("response_prefix"):
        return SelectedPrompt(selected, generation)
    passages = [passage for prompt in prompts for passage in prompt.passages]
    if answer_score(best.relevance, known_share(question, passages), rules) < rules.min_score:
        stop = _with_line_break(generation)
        return SelectedPrompt(selected, {**generation, "response_prefix": REFUSAL, "stop": stop})
    further = (each for each in others if each.relevance >= best.relevance - rules.max_gap)
    lines_of_answer = answer_lines(best, further, prompts, max_further=rules.max_further)
    quoted = _fit_lines(lines_of_answer, generation.get("max_new_tokens", sys.maxsize), count_tokens)
    selected, quotes = _join_lines(prompts, quoted, join)
    beginning = "\n".join(quote.line for quote in quotes)
    return SelectedPrompt(selected, {**generation, "response_prefix": beginning}, quotes)


def answer_score(relevance: float, known: float, rules: SelectionRules = RULES) -> float:
    """Return how likely the passages contain an answer, in nats.

    Args:
        relevance: the relevance of the best line, in nats.
        known: the share of the question's words that are in the passages.
        rules: the weight of this share.
    """
    return relevance + rules.known_weight * known


def known_share(question: str, passages: Sequence[Passage]) -> float:
    """Return the share of the words of a question that are in the passages, their headings or their files' names.

    Words are compared by their first letters; a question without words that carry meaning is known.
    """
    words = content_stems(question)
    known = set[str]().union(
        *(content_stems(f"{name_words(each.source)}\n{each.text_with_headings}") for each in passages)
    )
    return len(words & known) / len(words) if words else 1.0


def _fit_lines(
    lines: Sequence[CandidateLine], max_tokens: int, count_tokens: Callable[[str], int]
) -> list[CandidateLine]:
    """Return the first line, and those after it that fit completely into ``max_tokens`` tokens."""
    ends = accumulate(count_tokens(line.text) + 1 for line in lines)
    return [line for index, (line, end) in enumerate(zip(lines, ends, strict=True)) if not index or end <= max_tokens]


def count_tokens(language_model: TextModel, text: str) -> int:
    """Return the number of tokens of a text, estimated if only the model's server has its tokenizer."""
    if language_model.tokenizer is None:
        return 1 + len(text) // LETTERS_PER_TOKEN
    return len(language_model.tokenizer.encode(text, add_special_tokens=False))


def _join_lines(
    prompts: Sequence[FittedPrompt], lines: Sequence[CandidateLine], join: JoinPrompts
) -> tuple[FittedPrompt, tuple[Quote, ...]]:
    """Return one prompt of all passages of the lines, and their quotes with the passage numbers in it.

    Lines of passages that do not fit into the prompt are left out.
    """
    indices, selected, quotes = [lines[0].prompt_index], prompts[lines[0].prompt_index], []
    for line in lines:
        if line.prompt_index not in indices:
            joined = join([passage for index in (*indices, line.prompt_index) for passage in prompts[index].passages])
            if joined is None:
                continue
            indices, selected = [*indices, line.prompt_index], joined
        quotes.append(replace(line.quote, number=indices.index(line.prompt_index) + 1))
    return selected, tuple(quotes)


def _with_line_break(generation: Mapping[str, Any]) -> list[str]:
    """Return the stop strings and a line break, so that nothing follows a refusal."""
    stop = generation.get("stop") or ()
    return [*((stop,) if isinstance(stop, str) else stop), "\n"]


def candidate_lines(prompts: Sequence[FittedPrompt], relevance: LineScorer) -> list[CandidateLine]:
    """Return the quotable lines of all passages by their relevance, best first.

    Questions are left out; a line of several passages counts once, for the passage in which it is most relevant.

    Args:
        prompts: one prompt for each passage.
        relevance: scores the lines.
    """
    found = [
        (index, quote)
        for index, each in enumerate(prompts)
        for quote in each.prompt.quotes
        if not _QUESTION.search(quote.sentence)
    ]
    scores = relevance([(prompts[index].passages[0], quote.sentence) for index, quote in found])
    best_place: dict[Quote, int] = {}
    for place in sorted(range(len(found)), key=lambda place: -scores[place]):
        best_place.setdefault(found[place][1], place)
    return [CandidateLine(*found[place], scores[place]) for place in best_place.values()]
