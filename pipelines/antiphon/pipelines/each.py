"""Each passage asked by itself, and the line that answers best. Knows nothing of how passages are found.

A small reader answers better from one passage than from several, each of which distracts it; and of the lines of one
passage it often says the second best. So the lines that answer best, as two sentence encoders see it, are weighed by
that and by how likely the model finds the first tokens of each as its answer: they are one draft, verified behind the
prompt. The heaviest is how the answer begins; where none shows that there is an answer, a refusal is it.
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
from antiphon.pipelines.prompt import DECLINED, Prompt, prompt_format, reader_prompt
from antiphon.pipelines.quotes import Quote, quotes_of
from antiphon.pipelines.relevance import Measure
from antiphon.retrieval import Passage

LINES = 8
"""So many lines, of all passages, are weighed by the model: those that answer the question best."""

REACH = 5.0
"""Nats of relevance by which a line may answer worse than the best one and still be weighed: what lies lower is hardly
ever said, and a passage of which no line is weighed need not be read."""

FIRST = 8
"""So many first tokens of a line tell how likely it is: by then it is known which line it is, and the rest is copied.
With as many lines and the refusal they are 63 rows, which is what one step holds where steps are compiled."""

_NAT = 0.4
"""What a nat by which the model would rather say a line than decline weighs, beside a nat of relevance."""

_CERTAIN = -10.0
"""The log-probability of a refusal below which it does not matter how unlikely it is."""

QUOTES, _NEARLY = 3, 2.0
"""So many lines are said at most, beside what they lead to, and the nats by which one may weigh less than the first."""

_SURE, _HOPELESS = 2.0, -3.0
"""What the heaviest line weighs where it is an answer whatever else is known of it, and where none is one."""


_QUESTION = re.compile(r"\w[*_\"'”’]*[?？؟][?!*_\"'”’)]*$")  # code and patterns end otherwise


@dataclass(frozen=True, slots=True)
class Bar:
    """What an answer needs: similarity, and ``nat`` for each nat of its log-probability, together ``least`` or more."""

    nat: float
    least: float


_WILLING, _ANYHOW = Bar(nat=0.05, least=0.3), Bar(nat=0.1, least=0.55)
"""Of a passage that the model would rather answer than decline, and of any."""


def weight_of(relevance: float, log_probability: float, declining: float) -> float:
    """How good an answer a line is, in nats, from its relevance and from its and a refusal's log-probability."""
    return relevance + _NAT * (log_probability - max(declining, _CERTAIN))


def is_enough(similarity: float, log_probability: float, declining: float) -> bool:
    """Whether a line shows that there is an answer: it is about what was asked, and likely where the model answers."""
    declined = min(exp(declining), 1 - 1e-9)
    likely = min(log_probability - log1p(-declined), 0.0)  # given that it does not decline
    bars = (_WILLING, _ANYHOW) if declined < 1 / 2 else (_ANYHOW,)
    return any(similarity + bar.nat * likely >= bar.least for bar in bars)


@runtime_checkable
class WeighingModel(Protocol):
    """A model that reads several prompts at once, each with a drafter of its own: `LanguageModel`."""

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""

    @property
    def options(self) -> DecodingOptions:
        """How it decodes."""

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


def asks_each(language_model: TextModel) -> TypeGuard[WeighingModel]:
    """Whether each passage has a prompt of its own: the model is a reader, and runs here.

    Raises:
        ValueError: the model's configuration names a form of prompt that is not known.
    """
    return prompt_format(language_model) is reader_prompt and isinstance(language_model, WeighingModel)


@dataclass(frozen=True, slots=True)
class AskedPassages:
    """Passages, mostly one, the prompt that asks them, as text and tokenized, and what to draft the answer from."""

    passages: tuple[Passage, ...]
    prompt: Prompt
    tokenized: PromptInput
    references: tuple[str, ...] = ()

    @property
    def lines(self) -> list[str]:
        """The lines that can be said."""
        return [line for answer in self.prompt.answers if answer != DECLINED for line in answer.splitlines()]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The passages that answer, what the model has read of them, and what an answer is to be generated with beside."""

    asked: AskedPassages
    prefix: PrefixCache
    options: Mapping[str, Any] = field(default_factory=dict)

    def answer(self, language_model: WeighingModel, **generation: Any) -> TextStream:
        """The answer while it grows; ``generation`` goes to `LanguageModel.stream`."""
        references, prefix = self.asked.references, self.prefix
        return language_model.stream(self.asked.tokenized, references=references, prefix=prefix, **generation)


@dataclass(frozen=True, slots=True)
class Measures:
    """What is measured of lines against the question: how well they answer it (nats), and how similar they are."""

    relevance: Measure
    similarity: Measure


Join = Callable[[Sequence[Passage]], AskedPassages | None]
"""Makes the prompt that asks several passages together; None where they do not fit into one."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of passage number ``place`` of those that are asked, and how well it answers."""

    place: int
    text: str
    relevance: float


@dataclass(frozen=True, slots=True)
class WeighedLine:
    """A line, its log-probability and that of a refusal, and what it weighs by them."""

    line: Line
    log_probability: float
    declining: float
    weight: float


def choose_passages(
    language_model: WeighingModel,
    asked: Sequence[AskedPassages],
    measures: Measures,
    prefixes: Sequence[PrefixCache] = (),
    *,
    join: Join = lambda passages: None,
    **generation: Any,
) -> Chosen:
    """The passage of the heaviest line, with which its answer begins; or with a refusal.

    It is a refusal where the line weighs hardly anything, or not so much that it is an answer and no line is enough.

    Lines that weigh nearly as much are said after it, and after each of these what it leads to by a colon. Lines of
    several passages need a prompt of these, which ``join`` makes. Passages without a line that may answer are not asked
    where another has one. An answer of which ``generation`` says the form, or how it begins, begins as it may.
    ``prefixes`` are one for each passage.
    """
    kept = list(prefixes) or [PrefixCache() for _ in asked]
    lines = weighed_lines(language_model, asked, fitting_lines(asked, measures.relevance), kept)
    if not lines:
        return Chosen(asked[0], kept[0], generation)
    best, *others = sorted(lines, key=lambda one: -one.weight)
    chosen, prefix = asked[best.line.place], kept[best.line.place]
    if generation.get("json_schema") is not None or generation.get("response_prefix"):
        return Chosen(chosen, prefix, generation)
    if not _is_answered(asked, lines, best.weight, measures.similarity):
        return Chosen(chosen, prefix, {**generation, "response_prefix": DECLINED, "stop": _with_line_break(generation)})
    heavy = [one.line for one in others[: QUOTES - 1] if one.weight >= best.weight - _NEARLY]
    room = generation.get("max_new_tokens", sys.maxsize)
    said = _within(language_model, _with_led_to([best.line, *heavy], asked), room)
    chosen, begins = _said_together(asked, said, join)
    return Chosen(chosen, prefix, {**generation, "response_prefix": "\n".join(begins)})


def _is_answered(
    asked: Sequence[AskedPassages], lines: Sequence[WeighedLine], most: float, similarity: Measure
) -> bool:
    """Whether there is an answer, by ``most``, what the heaviest line weighs; in between any line may show it."""
    if not _HOPELESS <= most < _SURE:
        return most >= _SURE
    pairs = [(asked[one.line.place].passages[0], _sentence(one.line.text)) for one in lines]
    return any(
        is_enough(similar, one.log_probability, one.declining)
        for similar, one in zip(similarity(pairs), lines, strict=True)
    )


def _within(language_model: WeighingModel, lines: Sequence[Line], room: int) -> list[Line]:
    """The first line, and those after it that can be said whole in so many tokens."""
    counts = (len(language_model.tokenizer.encode(line.text, add_special_tokens=False)) + 1 for line in lines)
    ends = accumulate(counts)
    return [line for at, (line, end) in enumerate(zip(lines, ends, strict=True)) if not at or end <= room]


def _said_together(
    asked: Sequence[AskedPassages], lines: Sequence[Line], join: Join
) -> tuple[AskedPassages, list[str]]:
    """What asks the passages of these lines, and the lines as they are said there; without those that do not fit."""
    places, chosen, said = [lines[0].place], asked[lines[0].place], []
    for line in lines:
        if line.place not in places:
            joined = join([passage for place in (*places, line.place) for passage in asked[place].passages])
            if joined is None:
                continue
            places, chosen = [*places, line.place], joined
        number = places.index(line.place) + 1
        said.append(line.text if number == 1 else Quote(number, _sentence(line.text)).line)
    return chosen, said


def _with_led_to(lines: Sequence[Line], asked: Sequence[AskedPassages]) -> list[Line]:
    """These lines, and after each that ends with a colon, which is half of what it says, the next one of its passage.

    None is said twice, and none that leads to what has been said.
    """
    said: dict[str, Line] = {}
    for line in lines:
        own = asked[line.place].lines
        after = own[own.index(line.text) + 1 :] if line.text.rstrip("*_`").endswith(":") else []
        if after and after[0] in said:
            continue
        said.setdefault(line.text, line)
        for text in after[:1]:
            said[text] = Line(line.place, text, line.relevance)
    return [*said.values()]


def _with_line_break(generation: Mapping[str, Any]) -> list[str]:
    """Nothing follows a refusal."""
    stop = generation.get("stop") or ()
    return [*((stop,) if isinstance(stop, str) else stop), "\n"]


def fitting_lines(asked: Sequence[AskedPassages], relevance_of: Measure) -> list[Line]:
    """The lines of these passages that answer the question best, the best first; one that stands in several, once.

    Those are left out that answer it much worse than the best one, and those that are a question themselves.
    """
    said = [(place, line) for place, one in enumerate(asked) for line in one.lines if not _QUESTION.search(line)]
    pairs = [(asked[place].passages[0], _sentence(line)) for place, line in said]
    relevance = relevance_of(pairs)
    places: dict[str, int] = {}
    for at in sorted(range(len(said)), key=lambda at: -relevance[at]):
        places.setdefault(said[at][1], at)
    least = max(relevance, default=0.0) - REACH
    return [Line(*said[at], relevance[at]) for at in [*places.values()][:LINES] if relevance[at] >= least]


def _sentence(line: str) -> str:
    """A line of an answer without its number."""
    quotes = quotes_of(line)
    return quotes[0].sentence if quotes else line


def weighed_lines(
    language_model: WeighingModel,
    asked: Sequence[AskedPassages],
    lines: Sequence[Line],
    prefixes: Sequence[PrefixCache],
) -> list[WeighedLine]:
    """What each line weighs. Passages without a line among these are not read."""
    places = sorted({line.place for line in lines})
    texts = [[*(line.text for line in lines if line.place == place), DECLINED] for place in places]
    found = log_probabilities(
        language_model, [asked[place] for place in places], texts, [prefixes[place] for place in places]
    )
    likely = {
        (place, text): (weight, weights[-1])
        for place, own, weights in zip(places, texts, found, strict=True)
        for text, weight in zip(own, weights, strict=True)
    }
    measured = [(line, likely[line.place, line.text]) for line in lines]
    return [WeighedLine(line, *nats, weight_of(line.relevance, *nats)) for line, nats in measured]


def log_probabilities(
    language_model: WeighingModel,
    asked: Sequence[AskedPassages],
    texts: Sequence[Sequence[str]],
    prefixes: Sequence[PrefixCache],
) -> list[list[float]]:
    """For each passage how likely, in nats, its answer begins with each of its ``texts``, by their first tokens."""
    encode = language_model.tokenizer.encode
    scorers = [ContinuationScorer([encode(text, add_special_tokens=False)[:FIRST] for text in own]) for own in texts]
    if not language_model.options.fixed_rows:  # forwards of a fixed shape hold no tree beside a prompt
        _read(language_model, asked, scorers, prefixes)
    return [
        _one_by_one(language_model, one, own, prefix) if scorer.log_probabilities is None else scorer.log_probabilities
        for scorer, one, own, prefix in zip(scorers, asked, texts, prefixes, strict=True)
    ]


def _read(
    language_model: WeighingModel,
    asked: Sequence[AskedPassages],
    scorers: Sequence[ContinuationScorer],
    prefixes: Sequence[PrefixCache],
) -> None:
    """Read each passage's prompt, with its texts as the draft of the first forward."""
    made = iter(scorers)  # one for each prompt, in their order
    rows = max((scorer.num_rows for scorer in scorers), default=0)
    with ExitStack() as streams:
        for stream in language_model.stream_batch(
            [one.tokenized for one in asked],
            prefixes=prefixes,
            drafter=lambda: next(made),
            num_draft_tokens=rows,
            max_new_tokens=rows + 2,
        ):
            next(streams.enter_context(stream), None)


def _one_by_one(
    language_model: WeighingModel, asked: AskedPassages, texts: Sequence[str], prefix: PrefixCache
) -> list[float]:
    """The same where no tree hangs from the prompt, which was read whole before or whose model verifies none.

    The model is told to begin with each text, and how likely it finds that is noted.
    """
    weights = []
    for text in texts:
        count = len(language_model.tokenizer.encode(text, add_special_tokens=False))
        options = {"response_prefix": text, "logprobs": 0, "max_new_tokens": min(count, FIRST)}
        said = language_model.stream(asked.tokenized, references=(text,), prefix=prefix, **options).to_end()
        weights.append(sum(token.logprob for token in said.completion.logprobs))
    return weights
