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
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import accumulate
from math import exp, log1p
from typing import Any, Protocol, TypeGuard, runtime_checkable

from antiphon.accel import PrefixCache, TextModel
from antiphon.accel.decoding.options import DecodingOptions
from antiphon.accel.drafting.continuation_scorer import ContinuationScorer
from antiphon.accel.text.completion import TextStream
from antiphon.accel.text.messages import PromptInput
from antiphon.pipelines.prompt import REFUSAL, Prompt, prompt_format, reader_prompt
from antiphon.pipelines.quotes import Quote, quotes_of
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
"""Maximum number of quoted lines, not counting lines that a colon leads to."""

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
class BatchStreamingModel(Protocol):
    """A model that decodes several prompts at once, each with its own drafter: `LanguageModel`."""

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""

    @property
    def options(self) -> DecodingOptions:
        """The decoding options."""

    def stream(
        self,
        prompt: PromptInput,
        *,
        references: Sequence[str] = (),
        prefix: PrefixCache | None = None,
        **parameters: Any,
    ) -> TextStream:
        """See `LanguageModel.stream`."""

    def stream_batch(
        self,
        prompts: Sequence[PromptInput],
        *,
        references: Sequence[Sequence[str]] = (),
        prefixes: Sequence[PrefixCache] = (),
        **parameters: Any,
    ) -> Sequence[TextStream]:
        """See `LanguageModel.stream_batch`."""


def selects_passages(language_model: TextModel) -> TypeGuard[BatchStreamingModel]:
    """Return whether passages are selected for this model: its prompt format is "reader", and it runs locally.

    Raises:
        ValueError: the model's configuration names an unknown prompt format.
    """
    return prompt_format(language_model) is reader_prompt and isinstance(language_model, BatchStreamingModel)


@dataclass(frozen=True, slots=True)
class PassagePrompt:
    """The prompt of one passage, or of several together, as text and tokenized."""

    passages: tuple[Passage, ...]
    prompt: Prompt
    tokenized: PromptInput

    @property
    def lines(self) -> list[str]:
        """The lines that an answer can quote."""
        return [line for answer in self.prompt.answers if answer != REFUSAL for line in answer.splitlines()]


@dataclass(frozen=True, slots=True)
class SelectedPrompt:
    """The prompt of the selected passages, its prefix cache, and the options of `LanguageModel.stream`.

    The options include ``response_prefix``, the lines that the answer starts with.
    """

    passage_prompt: PassagePrompt
    prefix: PrefixCache
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LineScorers:
    """The scorers of lines for one question: relevance in nats, and similarity as a cosine."""

    relevance: LineScorer
    similarity: LineScorer


JoinPrompts = Callable[[Sequence[Passage]], PassagePrompt | None]
"""Makes one prompt of several passages, or returns None if they do not fit into one."""


@dataclass(frozen=True, slots=True)
class CandidateLine:
    """A quotable line: the index of its prompt, its text, and its relevance in nats."""

    prompt_index: int
    text: str
    relevance: float


@dataclass(frozen=True, slots=True)
class ScoredLine:
    """A line with its log-probability, that of a refusal, and its score, in nats."""

    line: CandidateLine
    log_probability: float
    refusal: float
    score: float


def select_passages(
    language_model: BatchStreamingModel,
    prompts: Sequence[PassagePrompt],
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
    further = [each.line for each in others[: MAX_QUOTES - 1] if each.score >= best.score - _MAX_SCORE_GAP]
    max_new_tokens = generation.get("max_new_tokens", sys.maxsize)
    quoted = _fit_lines(language_model, _with_following([best.line, *further], prompts), max_new_tokens)
    selected, beginning = _join_lines(prompts, quoted, join)
    return SelectedPrompt(selected, prefix, {**generation, "response_prefix": "\n".join(beginning)})


def _has_answer(
    prompts: Sequence[PassagePrompt], lines: Sequence[ScoredLine], best_score: float, similarity: LineScorer
) -> bool:
    """Return whether there is an answer: by the best score, or between the limits by the similarity of any line."""
    if not _LOW_SCORE <= best_score < _HIGH_SCORE:
        return best_score >= _HIGH_SCORE
    pairs = [(prompts[each.line.prompt_index].passages[0], _sentence(each.line.text)) for each in lines]
    return any(
        shows_answer(similar, each.log_probability, each.refusal)
        for similar, each in zip(similarity(pairs), lines, strict=True)
    )


def _fit_lines(
    language_model: BatchStreamingModel, lines: Sequence[CandidateLine], max_tokens: int
) -> list[CandidateLine]:
    """Return the first line, and those after it that fit completely into ``max_tokens`` tokens."""
    counts = (len(language_model.tokenizer.encode(line.text, add_special_tokens=False)) + 1 for line in lines)
    ends = accumulate(counts)
    return [line for index, (line, end) in enumerate(zip(lines, ends, strict=True)) if not index or end <= max_tokens]


def _join_lines(
    prompts: Sequence[PassagePrompt], lines: Sequence[CandidateLine], join: JoinPrompts
) -> tuple[PassagePrompt, list[str]]:
    """Return one prompt of all passages of the lines, and the lines with their passage numbers in it.

    Lines of passages that do not fit into the prompt are left out.
    """
    indices, selected, texts = [lines[0].prompt_index], prompts[lines[0].prompt_index], []
    for line in lines:
        if line.prompt_index not in indices:
            joined = join([passage for index in (*indices, line.prompt_index) for passage in prompts[index].passages])
            if joined is None:
                continue
            indices, selected = [*indices, line.prompt_index], joined
        number = indices.index(line.prompt_index) + 1
        texts.append(line.text if number == 1 else Quote(number, _sentence(line.text)).line)
    return selected, texts


def _with_following(lines: Sequence[CandidateLine], prompts: Sequence[PassagePrompt]) -> list[CandidateLine]:
    """Return the lines, and after each that ends with a colon the next line of its passage.

    No line is repeated, and a line with a colon is left out if the line after it is already quoted.
    """
    quoted: dict[str, CandidateLine] = {}
    for line in lines:
        own = prompts[line.prompt_index].lines
        after = own[own.index(line.text) + 1 :] if line.text.rstrip("*_`").endswith(":") else []
        if after and after[0] in quoted:
            continue
        quoted.setdefault(line.text, line)
        for text in after[:1]:
            quoted[text] = CandidateLine(line.prompt_index, text, line.relevance)
    return [*quoted.values()]


def _with_line_break(generation: Mapping[str, Any]) -> list[str]:
    """Return the stop strings and a line break, so that nothing follows a refusal."""
    stop = generation.get("stop") or ()
    return [*((stop,) if isinstance(stop, str) else stop), "\n"]


def candidate_lines(prompts: Sequence[PassagePrompt], relevance: LineScorer) -> list[CandidateLine]:
    """Return the most relevant lines, best first, at most `MAX_LINES`.

    Questions and lines much less relevant than the best one are left out; a line of several passages counts once.

    Args:
        prompts: one prompt for each passage.
        relevance: scores the lines.
    """
    found = [(index, line) for index, each in enumerate(prompts) for line in each.lines if not _QUESTION.search(line)]
    scores = relevance([(prompts[index].passages[0], _sentence(line)) for index, line in found])
    best_place: dict[str, int] = {}
    for place in sorted(range(len(found)), key=lambda place: -scores[place]):
        best_place.setdefault(found[place][1], place)
    minimum = max(scores, default=0.0) - MAX_RELEVANCE_GAP
    top = [*best_place.values()][:MAX_LINES]
    return [CandidateLine(*found[place], scores[place]) for place in top if scores[place] >= minimum]


def _sentence(line: str) -> str:
    """Return a line of an answer without the number of its passage."""
    quotes = quotes_of(line)
    return quotes[0].sentence if quotes else line


def _score_lines(
    language_model: BatchStreamingModel,
    prompts: Sequence[PassagePrompt],
    lines: Sequence[CandidateLine],
    prefixes: Sequence[PrefixCache],
) -> list[ScoredLine]:
    """Score lines; only the prompts of these lines are prefilled."""
    indices = sorted({line.prompt_index for line in lines})
    texts = [[*(line.text for line in lines if line.prompt_index == index), REFUSAL] for index in indices]
    found = log_probabilities(
        language_model, [prompts[index] for index in indices], texts, [prefixes[index] for index in indices]
    )
    by_line = {
        (index, text): (value, values[-1])
        for index, own, values in zip(indices, texts, found, strict=True)
        for text, value in zip(own, values, strict=True)
    }
    pairs = [(line, by_line[line.prompt_index, line.text]) for line in lines]
    return [ScoredLine(line, *logprobs, line_score(line.relevance, *logprobs)) for line, logprobs in pairs]


def log_probabilities(
    language_model: BatchStreamingModel,
    prompts: Sequence[PassagePrompt],
    texts: Sequence[Sequence[str]],
    prefixes: Sequence[PrefixCache],
) -> list[list[float]]:
    """Return the log-probabilities of texts as beginnings of answers, by their first `SCORED_TOKENS` tokens.

    Args:
        language_model: the model.
        prompts: the prompts.
        texts: the texts for each prompt.
        prefixes: the prefix cache of each prompt.
    """
    encode = language_model.tokenizer.encode
    scorers = [
        ContinuationScorer([encode(text, add_special_tokens=False)[:SCORED_TOKENS] for text in own]) for own in texts
    ]
    if not language_model.options.fixed_rows:  # forward passes of a fixed shape cannot verify a tree with a prefill
        _prefill_with_texts(language_model, prompts, scorers, prefixes)
    return [
        _score_separately(language_model, prompt, own, prefix)
        if scorer.log_probabilities is None
        else scorer.log_probabilities
        for scorer, prompt, own, prefix in zip(scorers, prompts, texts, prefixes, strict=True)
    ]


def _prefill_with_texts(
    language_model: BatchStreamingModel,
    prompts: Sequence[PassagePrompt],
    scorers: Sequence[ContinuationScorer],
    prefixes: Sequence[PrefixCache],
) -> None:
    """Prefill each prompt with its texts as the draft tree of the first forward pass."""
    remaining = iter(scorers)  # one drafter for each prompt, in their order
    rows = max((scorer.num_rows for scorer in scorers), default=0)
    with ExitStack() as streams:
        for stream in language_model.stream_batch(
            [prompt.tokenized for prompt in prompts],
            prefixes=prefixes,
            drafter=lambda: next(remaining),
            num_draft_tokens=rows,
            max_new_tokens=rows + 2,
        ):
            next(streams.enter_context(stream), None)


def _score_separately(
    language_model: BatchStreamingModel, prompt: PassagePrompt, texts: Sequence[str], prefix: PrefixCache
) -> list[float]:
    """Return them by generating each text as ``response_prefix``, if the prompt is cached or trees are unsupported."""
    values = []
    for text in texts:
        count = len(language_model.tokenizer.encode(text, add_special_tokens=False))
        options = {"response_prefix": text, "logprobs": 0, "max_new_tokens": min(count, SCORED_TOKENS)}
        stream = language_model.stream(prompt.tokenized, references=(text,), prefix=prefix, **options).to_end()
        values.append(sum(token.logprob for token in stream.completion.logprobs))
    return values
