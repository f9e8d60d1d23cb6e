"""Selects the passages and the lines that an answer of the bundled extractive model starts with.

A small model answers better from one passage than from several, which distract it, and often quotes only the second
best line of a passage. So each passage gets its own prompt, and its quotable lines are scored by their relevance (two
sentence encoders) and by the log-probability of their first tokens. All lines of a prompt are one draft tree, which is
verified together with the prefill. The answer starts with the best lines, or is a refusal if none is good enough.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import exp, log1p
from typing import Any, Protocol, TypeGuard, runtime_checkable

from antiphon.accel import PrefixCache, TextModel
from antiphon.accel.text.completion import TextStream
from antiphon.accel.text.messages import PromptInput
from antiphon.pipelines.answer_lines import CandidateLine, answer_lines
from antiphon.pipelines.fitted_prompt import FittedPrompt
from antiphon.pipelines.prompt import REFUSAL, prompt_format, reader_prompt
from antiphon.pipelines.quotes import Quote
from antiphon.pipelines.relevance import LineScorer
from antiphon.retrieval import Passage

MAX_LINES = 8
"""Maximum number of lines, of all passages, that the model scores: the most relevant ones."""

MAX_RELEVANCE_GAP = 5.0
"""Maximum gap in relevance (nats) to the best line; the model does not score less relevant lines."""

SCORED_TOKENS = 8
"""First tokens of a line whose log-probability is summed: they identify the line, and the rest is copied. `MAX_LINES`
lines and the refusal then have at most 63 rows, which fit into one step of an engine with compiled steps."""

MAX_QUOTES = 3
"""Maximum number of quoted lines, not counting the blocks that they introduce."""

_LOGPROB_WEIGHT = 0.4  # weight of log-probability relative to relevance, both in nats
_MIN_REFUSAL_LOGPROB = -10.0  # nats; less likely refusals count as equally unlikely
_MAX_SCORE_GAP = 2.0  # nats; maximum gap between a further quoted line and the first one
_HIGH_SCORE, _LOW_SCORE = 2.0, -3.0  # nats; at or above the first there is an answer, below the second there is none

_QUESTION = re.compile(r"\w[*_\"'”’]*[?？؟][?!*_\"'”’)]*$")  # code and patterns do not end like this


@dataclass(frozen=True, slots=True)
class Threshold:
    """The minimum of a line's similarity plus ``logprob_weight`` times its log-probability."""

    logprob_weight: float
    minimum: float


# The first applies if the probability of a refusal is below one half, the second always.
_IF_WILLING, _ALWAYS = Threshold(logprob_weight=0.05, minimum=0.3), Threshold(logprob_weight=0.1, minimum=0.55)


def line_score(relevance: float, log_probability: float, refusal: float) -> float:
    """Return how good an answer a line is, in nats.

    Args:
        relevance: the relevance of the line, in nats.
        log_probability: the log-probability of its first tokens.
        refusal: the log-probability of a refusal.
    """
    return relevance + _LOGPROB_WEIGHT * (log_probability - max(refusal, _MIN_REFUSAL_LOGPROB))


def shows_answer(similarity: float, log_probability: float, refusal: float) -> bool:
    """Return whether a line is similar and likely enough to show that there is an answer.

    Args:
        similarity: the cosine of line and question.
        log_probability: the log-probability of its first tokens.
        refusal: the log-probability of a refusal.
    """
    refused = min(exp(refusal), 1 - 1e-9)
    likely = min(log_probability - log1p(-refused), 0.0)  # log-probability given that the model does not refuse
    thresholds = (_IF_WILLING, _ALWAYS) if refused < 1 / 2 else (_ALWAYS,)
    return any(similarity + each.logprob_weight * likely >= each.minimum for each in thresholds)


@runtime_checkable
class ScoringModel(Protocol):
    """A model that scores continuations of several prompts at once: `LanguageModel`."""

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""

    def stream(
        self,
        prompt: PromptInput,
        *,
        references: Sequence[str] = (),
        prefix: PrefixCache | None = None,
        **parameters: Any,
    ) -> TextStream:
        """See `LanguageModel.stream`."""

    def score_batch(
        self,
        prompts: Sequence[PromptInput],
        continuations: Sequence[Sequence[str]],
        *,
        prefixes: Sequence[PrefixCache] = (),
        first: int | None = None,
    ) -> list[list[float]]:
        """See `LanguageModel.score_batch`."""


def selects_passages(language_model: TextModel) -> TypeGuard[ScoringModel]:
    """Return whether passages are selected for this model: its prompt format is "reader", and it runs locally.

    Raises:
        ValueError: the model's configuration names an unknown prompt format.
    """
    return prompt_format(language_model) is reader_prompt and isinstance(language_model, ScoringModel)


@dataclass(frozen=True, slots=True)
class SelectedPrompt:
    """The prompt of the selected passages, its prefix cache if it has one, and the options of `LanguageModel.stream`.

    The options include ``response_prefix``, the quotes that the answer starts with as text.
    """

    fitted_prompt: FittedPrompt
    prefix: PrefixCache | None
    options: Mapping[str, Any] = field(default_factory=dict)
    quotes: tuple[Quote, ...] = ()


@dataclass(frozen=True, slots=True)
class LineScorers:
    """The scorers of lines for one question: relevance in nats, and similarity as a cosine."""

    relevance: LineScorer
    similarity: LineScorer


JoinPrompts = Callable[[Sequence[Passage]], FittedPrompt | None]
"""Makes one prompt of several passages, or returns None if they do not fit into one."""


@dataclass(frozen=True, slots=True)
class ScoredLine:
    """A line with its log-probability, that of a refusal, and its score, in nats."""

    line: CandidateLine
    log_probability: float
    refusal: float
    score: float


def select_passages(
    language_model: ScoringModel,
    prompts: Sequence[FittedPrompt],
    scorers: LineScorers,
    prefixes: Sequence[PrefixCache] = (),
    *,
    join: JoinPrompts = lambda passages: None,
    **generation: Any,
) -> SelectedPrompt:
    """Select the prompt of the best lines and let its answer start with them, or with a refusal.

    The answer is a refusal if the best score is below `_LOW_SCORE`, or below `_HIGH_SCORE` and no line is similar
    enough. If ``generation`` sets the form or the beginning of the answer, only the prompt is selected.

    Args:
        language_model: the model that scores the lines.
        prompts: one prompt for each passage.
        scorers: relevance and similarity of lines.
        prefixes: the prefix cache of each prompt; by default new ones.
        join: makes one prompt if lines of several passages are quoted.
        **generation: options of `LanguageModel.stream`.
    """
    caches = list(prefixes) or [PrefixCache() for _ in prompts]
    # 1. The most relevant lines of all passages.
    candidates = candidate_lines(prompts, scorers.relevance)
    # 2. Their scores; passages without one of these lines are not prefilled.
    lines = _score_lines(language_model, prompts, candidates, caches)
    if not lines:
        return SelectedPrompt(prompts[0], caches[0], generation)
    best, *others = sorted(lines, key=lambda each: -each.score)
    selected, prefix = prompts[best.line.prompt_index], caches[best.line.prompt_index]
    if generation.get("json_schema") is not None or generation.get("response_prefix"):
        return SelectedPrompt(selected, prefix, generation)
    # 3. A refusal, or the best line with the lines that score nearly as well.
    if not _has_answer(prompts, lines, best.score, scorers.similarity):
        stop = _with_line_break(generation)
        return SelectedPrompt(selected, prefix, {**generation, "response_prefix": REFUSAL, "stop": stop})
    further = (each.line for each in others if each.score >= best.score - _MAX_SCORE_GAP)
    lines_of_answer = answer_lines(best.line, further, prompts, max_further=MAX_QUOTES - 1)
    quoted = _fit_lines(language_model, lines_of_answer, generation.get("max_new_tokens", sys.maxsize))
    selected, quotes = _join_lines(prompts, quoted, join)
    beginning = "\n".join(quote.line for quote in quotes)
    return SelectedPrompt(selected, prefix, {**generation, "response_prefix": beginning}, quotes)


def _has_answer(
    prompts: Sequence[FittedPrompt], lines: Sequence[ScoredLine], best_score: float, similarity: LineScorer
) -> bool:
    """Return whether there is an answer: by the best score, or between the limits by the similarity of any line."""
    if not _LOW_SCORE <= best_score < _HIGH_SCORE:
        return best_score >= _HIGH_SCORE
    pairs = [(prompts[each.line.prompt_index].passages[0], each.line.quote.sentence) for each in lines]
    return any(
        shows_answer(similar, each.log_probability, each.refusal)
        for similar, each in zip(similarity(pairs), lines, strict=True)
    )


def _fit_lines(language_model: ScoringModel, lines: Sequence[CandidateLine], max_tokens: int) -> list[CandidateLine]:
    """Return the first line, and those after it that fit completely into ``max_tokens`` tokens."""
    counts = (len(language_model.tokenizer.encode(line.text, add_special_tokens=False)) + 1 for line in lines)
    ends = accumulate(counts)
    return [line for index, (line, end) in enumerate(zip(lines, ends, strict=True)) if not index or end <= max_tokens]


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
    """Return the most relevant lines, best first, at most `MAX_LINES`.

    Questions and lines much less relevant than the best one are left out; a line of several passages counts once.

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
    minimum = max(scores, default=0.0) - MAX_RELEVANCE_GAP
    top = [*best_place.values()][:MAX_LINES]
    return [CandidateLine(*found[place], scores[place]) for place in top if scores[place] >= minimum]


def _score_lines(
    language_model: ScoringModel,
    prompts: Sequence[FittedPrompt],
    lines: Sequence[CandidateLine],
    prefixes: Sequence[PrefixCache],
) -> list[ScoredLine]:
    """Score lines; only the prompts of these lines are prefilled."""
    indices = sorted({line.prompt_index for line in lines})
    texts = [[*(line.text for line in lines if line.prompt_index == index), REFUSAL] for index in indices]
    found = language_model.score_batch(
        [prompts[index].tokenized for index in indices],
        texts,
        prefixes=[prefixes[index] for index in indices],
        first=SCORED_TOKENS,
    )
    by_line = {
        (index, text): (value, values[-1])
        for index, own, values in zip(indices, texts, found, strict=True)
        for text, value in zip(own, values, strict=True)
    }
    pairs = [(line, by_line[line.prompt_index, line.text]) for line in lines]
    return [ScoredLine(line, *logprobs, line_score(line.relevance, *logprobs)) for line, logprobs in pairs]
