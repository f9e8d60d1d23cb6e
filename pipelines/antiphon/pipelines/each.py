"""Each passage asked by itself, and the line that answers best. Knows nothing of how passages are found.

A small reader answers better from one passage than from several, each of which distracts it; and of the lines of one
passage it often says the second best. So the lines that fit the question best are weighed, by how well they fit and by
how likely the model finds the first tokens of each as its answer: they are one draft, verified behind the prompt. The
heaviest is how the answer begins; where it is not enough a refusal is the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import exp, log1p
from typing import Any, Protocol, TypeGuard, runtime_checkable

from antiphon.accel import PrefixCache, TextModel
from antiphon.accel.decoding.options import DecodingOptions
from antiphon.accel.drafting.weigher import Weigher
from antiphon.accel.text.completion import Pieces
from antiphon.accel.text.messages import PromptInput
from antiphon.pipelines.prompt import DECLINED, Prompt, prompt_format, reader_prompt
from antiphon.pipelines.quotes import quotes_of
from antiphon.pipelines.relevance import Relevance
from antiphon.retrieval import Passage

LINES = 8
"""So many lines, of all passages, are weighed by the model: those that fit the question best."""

FIRST = 8
"""So many first tokens of a line tell how likely it is: by then it is known which line it is, and the rest is copied.
With as many lines and the refusal they are 63 rows, which is what one step holds where steps are compiled."""

_NAT = 0.15
"""What a nat by which the model would rather say a line than decline weighs, beside relevance, which is at most 1."""


@dataclass(frozen=True, slots=True)
class Bar:
    """What an answer needs: relevance, and ``nat`` for each nat of its log-probability, together ``least`` or more."""

    nat: float
    least: float


_WILLING, _ANYHOW = Bar(nat=0.05, least=0.3), Bar(nat=0.1, least=0.55)
"""Of a passage that the model would rather answer than decline, and of any."""


def weight_of(relevance: float, log_probability: float, declining: float) -> float:
    """How good an answer a line is, from its relevance and from its and a refusal's log-probability (nats)."""
    return relevance + _NAT * (log_probability - declining)


def is_enough(relevance: float, log_probability: float, declining: float) -> bool:
    """Whether a line is an answer: it fits, and is likely where the model does not decline."""
    declined = min(exp(declining), 1 - 1e-9)
    likely = min(log_probability - log1p(-declined), 0.0)  # given that it does not decline
    bars = (_WILLING, _ANYHOW) if declined < 1 / 2 else (_ANYHOW,)
    return any(relevance + bar.nat * likely >= bar.least for bar in bars)


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
    ) -> Pieces:
        """See `LanguageModel.stream`."""

    def stream_batch(
        self,
        prompts: Sequence[PromptInput],
        *,
        references: Sequence[Sequence[str]] = (),
        prefixes: Sequence[PrefixCache] = (),
        **parameters: Any,
    ) -> Sequence[Pieces]:
        """See `LanguageModel.stream_batch`."""


def asks_each(language_model: TextModel) -> TypeGuard[WeighingModel]:
    """Whether each passage has a prompt of its own: the model is a reader, and runs here.

    Raises:
        ValueError: the model's configuration names a form of prompt that is not known.
    """
    return prompt_format(language_model) is reader_prompt and isinstance(language_model, WeighingModel)


@dataclass(frozen=True, slots=True)
class AskedPassage:
    """A passage, the prompt that asks it alone, as text and tokenized, and what to draft the answer from."""

    passage: Passage
    prompt: Prompt
    tokenized: PromptInput
    references: tuple[str, ...] = ()

    @property
    def lines(self) -> list[str]:
        """The lines that an answer may begin with."""
        return [line for answer in self.prompt.answers if answer != DECLINED for line in answer.splitlines()]


@dataclass(frozen=True, slots=True)
class ChosenPassage:
    """The passage that answers, what its model has read of it, and what an answer is to be generated with beside."""

    asked: AskedPassage
    prefix: PrefixCache
    options: Mapping[str, Any] = field(default_factory=dict)

    def answer(self, language_model: WeighingModel, **generation: Any) -> Pieces:
        """The answer while it grows; ``generation`` goes to `LanguageModel.stream`."""
        references, prefix = self.asked.references, self.prefix
        return language_model.stream(self.asked.tokenized, references=references, prefix=prefix, **generation)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of passage number ``place`` of those that are asked, and how well it fits the question."""

    place: int
    text: str
    relevance: float


@dataclass(frozen=True, slots=True)
class WeighedLine:
    """A line, what it weighs, and whether it is an answer."""

    line: Line
    weight: float
    is_enough: bool


def choose_passage(
    language_model: WeighingModel,
    asked: Sequence[AskedPassage],
    relevance: Relevance,
    prefixes: Sequence[PrefixCache] = (),
    **generation: Any,
) -> ChosenPassage:
    """The passage of the heaviest line, with which its answer begins, or with a refusal where that line is not enough.

    Passages without a quotable line are not asked where another has one. An answer of which ``generation`` says the
    form, or how it begins, begins as it may. ``prefixes`` are one for each passage.
    """
    kept = list(prefixes) or [PrefixCache() for _ in asked]
    lines = weighed_lines(language_model, asked, fitting_lines(asked, relevance), kept)
    if not lines:
        return ChosenPassage(asked[0], kept[0], generation)
    best = max(lines, key=lambda one: one.weight)
    chosen, prefix = asked[best.line.place], kept[best.line.place]
    if generation.get("json_schema") is not None or generation.get("begins"):
        return ChosenPassage(chosen, prefix, generation)
    if best.is_enough:
        return ChosenPassage(chosen, prefix, {**generation, "begins": best.line.text})
    return ChosenPassage(chosen, prefix, {**generation, "begins": DECLINED, "stop": _with_line_break(generation)})


def _with_line_break(generation: Mapping[str, Any]) -> list[str]:
    """Nothing follows a refusal."""
    stop = generation.get("stop") or ()
    return [*((stop,) if isinstance(stop, str) else stop), "\n"]


def fitting_lines(asked: Sequence[AskedPassage], relevance: Relevance) -> list[Line]:
    """The lines of these passages that fit the question best, the best first."""
    said = list({line: (place, line) for place, one in reversed([*enumerate(asked)]) for line in one.lines}.values())
    fits = relevance([(asked[place].passage, _sentence(line)) for place, line in said])
    lines = [Line(place, line, fit) for (place, line), fit in zip(said, fits, strict=True)]
    return sorted(lines, key=lambda line: -line.relevance)[:LINES]


def _sentence(line: str) -> str:
    """A line of an answer without its number."""
    quotes = quotes_of(line)
    return quotes[0].sentence if quotes else line


def weighed_lines(
    language_model: WeighingModel, asked: Sequence[AskedPassage], lines: Sequence[Line], prefixes: Sequence[PrefixCache]
) -> list[WeighedLine]:
    """What each line weighs, and whether it is enough. Passages without a line among these are not read."""
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
    measured = [(line, (line.relevance, *likely[line.place, line.text])) for line in lines]
    return [WeighedLine(line, weight_of(*one), is_enough(*one)) for line, one in measured]


def log_probabilities(
    language_model: WeighingModel,
    asked: Sequence[AskedPassage],
    texts: Sequence[Sequence[str]],
    prefixes: Sequence[PrefixCache],
) -> list[list[float]]:
    """For each passage how likely, in nats, its answer begins with each of its ``texts``, by their first tokens."""
    encode = language_model.tokenizer.encode
    weighers = [Weigher([encode(text, add_special_tokens=False)[:FIRST] for text in own]) for own in texts]
    if not language_model.options.fixed_rows:  # forwards of a fixed shape hold no tree beside a prompt
        _read(language_model, asked, weighers, prefixes)
    return [
        _one_by_one(language_model, one, own, prefix)
        if weigher.log_probabilities is None
        else weigher.log_probabilities
        for weigher, one, own, prefix in zip(weighers, asked, texts, prefixes, strict=True)
    ]


def _read(
    language_model: WeighingModel,
    asked: Sequence[AskedPassage],
    weighers: Sequence[Weigher],
    prefixes: Sequence[PrefixCache],
) -> None:
    """Read each passage's prompt, with its texts as the draft of the first forward."""
    made = iter(weighers)  # one for each prompt, in their order
    rows = max((weigher.rows for weigher in weighers), default=0)
    with ExitStack() as streams:
        for stream in language_model.stream_batch(
            [one.tokenized for one in asked],
            prefixes=prefixes,
            drafter=lambda: next(made),
            rows=rows,
            max_new_tokens=rows + 2,
        ):
            next(streams.enter_context(stream), None)


def _one_by_one(
    language_model: WeighingModel, asked: AskedPassage, texts: Sequence[str], prefix: PrefixCache
) -> list[float]:
    """The same where no tree hangs from the prompt, which was read whole before or whose model verifies none.

    The model is told to begin with each text, and how likely it finds that is noted.
    """
    weights = []
    for text in texts:
        count = len(language_model.tokenizer.encode(text, add_special_tokens=False))
        options = {"begins": text, "logprobs": 0, "max_new_tokens": min(count, FIRST)}
        said = language_model.stream(asked.tokenized, references=(text,), prefix=prefix, **options).to_end()
        weights.append(sum(token.logprob for token in said.completion.logprobs))
    return weights
