"""Each passage asked by itself, and the answer that fits the question best. Knows nothing of how passages are found.

A small reader answers better from one passage than from several, each of which distracts it. So every passage has a
prompt of its own, these share forwards, and the answers are weighed: by how well the sentence that each begins with
fits the question, and a little by how likely the model finds it. Where even the best does not fit, the passages that
were declined are looked at once more, for what the model would say if it could not decline; then a refusal stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard, runtime_checkable

from antiphon.accel import Completion, PrefixCache, TextModel
from antiphon.accel.text.completion import Pieces
from antiphon.accel.text.messages import PromptInput
from antiphon.pipelines.prompt import DECLINED, Prompt, is_refusal, prompt_format, reader_prompt
from antiphon.pipelines.quotes import Quote, quotes_of
from antiphon.pipelines.relevance import Relevance
from antiphon.retrieval import Passage

_OPENING = len(DECLINED) // 2
"""So many characters of a refusal, and nothing else begins like it."""

_NEVER = -100.0
"""A bias with which a token is never chosen."""

_NAT = 0.2
"""What a nat of log-probability weighs beside relevance, which is at most 1: of two answers the heavier is taken."""


@dataclass(frozen=True, slots=True)
class Bar:
    """What an answer needs: relevance, and ``nat`` for each nat of log-probability, together ``least`` or more.

    With ``is_quoted`` it has to begin with a line of its passage too.
    """

    nat: float
    least: float
    is_quoted: bool = False


FIRST, AGAIN = Bar(nat=0.05, least=0.25), Bar(nat=0.2, least=0.35, is_quoted=True)
"""Where the model is free to decline, and where it is not: of what it did not want to say it has to be surer. From
held-out questions: a higher ``least`` declines many of those that it would have answered rightly."""


class WeighedPieces(Protocol):
    """A text piece by piece that knows how likely the model finds it: `antiphon.accel.Stream`."""

    @property
    def log_probability(self) -> float:
        """Of what was said until now, in nats."""

    @property
    def completion(self) -> Completion:
        """What was said, once the text has ended or is closed."""

    def __next__(self) -> str:
        """The next piece."""

    def close(self) -> None:
        """Stop generating."""


@runtime_checkable
class WeighingModel(Protocol):
    """A model that answers several prompts at once and knows how likely its answers are: `LanguageModel`."""

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""

    def stream_batch(
        self,
        prompts: Sequence[PromptInput],
        *,
        references: Sequence[Sequence[str]] = (),
        prefixes: Sequence[PrefixCache] = (),
        **parameters: Any,
    ) -> Sequence[WeighedPieces]:
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


@dataclass(eq=False, slots=True)
class Candidate:
    """The answer from one passage while it grows; ``is_over`` once it has ended or was given up.

    ``weight`` is known as soon as its first sentence is whole, and so is whether the answer ``is_enough``.
    """

    asked: AskedPassage
    stream: WeighedPieces
    bar: Bar
    pieces: list[str] = field(default_factory=list)
    is_over: bool = False
    is_given_up: bool = False
    weight: float | None = None
    is_enough: bool = False

    @property
    def text(self) -> str:
        """What was said until now."""
        return "".join(self.pieces).strip()

    @property
    def is_refusal(self) -> bool:
        """Whether it declines, or begins to, or began to when it was given up."""
        is_whole = self.is_over and not self.is_given_up
        return is_refusal(self.text) if is_whole else self.text.startswith(DECLINED[:_OPENING])

    @property
    def is_answer(self) -> bool:
        """Whether it says something that is no refusal, and cannot become one."""
        return not self.is_given_up and not self.is_refusal and not DECLINED.startswith(self.text)

    @property
    def most(self) -> float:
        """What it weighs, or the most that it could."""
        return 1 + _NAT * self.stream.log_probability if self.weight is None else self.weight

    def advance(self) -> None:
        """Take one more piece, or note that there is none."""
        try:
            self.pieces.append(next(self.stream))
        except StopIteration:
            self.is_over = True

    def end(self) -> None:
        """Take all that is left."""
        while not self.is_over:
            self.advance()

    def weigh(self, relevance: Relevance) -> None:
        """Weigh the first sentence, if it is whole and the answer is no refusal."""
        first, _, further = self.text.partition("\n")
        if self.weight is None and self.is_answer and (further or self.is_over):
            said = quotes_of(first)
            fit = relevance(self.asked.passage, said[0].sentence if said else first)
            likelihood = self.stream.log_probability
            self.weight = fit + _NAT * likelihood
            is_quote = any(first in answer.splitlines() for answer in self.asked.prompt.answers)
            self.is_enough = fit + self.bar.nat * likelihood >= self.bar.least and (is_quote or not self.bar.is_quoted)

    def give_up(self) -> None:
        """Have it say no more."""
        self.stream.close()
        self.is_over = self.is_given_up = True


@dataclass(frozen=True, slots=True)
class SurestAnswer:
    """An answer that may go on growing while its ``pieces`` are read, and the passage that was asked.

    ``options`` are what the model was asked with beside what it was told to.
    """

    asked: AskedPassage
    pieces: Pieces
    options: Mapping[str, Any]


def surest_answer(
    language_model: WeighingModel,
    asked: Sequence[AskedPassage],
    relevance: Relevance,
    prefixes: Sequence[PrefixCache] = (),
    **generation: Any,
) -> SurestAnswer:
    """The answer that fits the question best; where that is not enough the first refusal, if there is one.

    All that is said the model said to that passage: at first as it likes, then to the passages that it declined,
    without their refusal's first token, where its tokenizer tells that one from the same word in a sentence. What
    begins as a second refusal, or can no longer be the best answer, is given up at once. ``generation`` goes to
    `LanguageModel.stream_batch`, and so do ``prefixes``.
    """
    kept = prefixes or [PrefixCache() for _ in asked]
    first = _Look(language_model, FIRST, relevance, generation)
    chosen = first.best_of(asked, kept)
    if chosen.is_refusal and (without := _without_refusal(language_model.tokenizer)):
        chosen.end()
        declined = [place for place, one in enumerate(first.candidates) if one.is_refusal]
        bias = {**(generation.get("logit_bias") or {}), **without}
        again = _Look(language_model, AGAIN, relevance, {**generation, "logit_bias": bias})
        second = again.best_of([asked[place] for place in declined], [kept[place] for place in declined])
        if second.is_enough:
            return SurestAnswer(second.asked, Resumed(second), {"logit_bias": bias})
        second.give_up()
    return SurestAnswer(chosen.asked, Resumed(chosen), {})


def _without_refusal(tokenizer: Any) -> dict[int, float]:
    """The bias that keeps an answer from beginning as a refusal; none, where it would keep it from other words."""
    first, *_ = tokenizer.encode(DECLINED, add_special_tokens=False)
    quoted = tokenizer.encode(Quote(1, DECLINED).line, add_special_tokens=False)
    return {} if first in quoted else {first: _NEVER}


@dataclass(eq=False, slots=True)
class _Look:
    """All passages asked at once, and their answers weighed."""

    language_model: WeighingModel
    bar: Bar
    relevance: Relevance
    generation: Mapping[str, Any]
    candidates: list[Candidate] = field(default_factory=list)

    def best_of(self, asked: Sequence[AskedPassage], prefixes: Sequence[PrefixCache]) -> Candidate:
        """The heaviest answer if it is enough, else the first refusal; it may not be over yet, all others are."""
        streams = self.language_model.stream_batch(
            [one.tokenized for one in asked],
            references=[one.references for one in asked],
            prefixes=prefixes,
            **self.generation,
        )
        self.candidates = [Candidate(*pair, self.bar) for pair in zip(asked, streams, strict=True)]
        chosen = None
        try:
            self._race()
            chosen = self._chosen()
        finally:
            for one in self.candidates:
                if one is not chosen and not one.is_over:
                    one.give_up()
        return chosen

    def _race(self) -> None:
        """Advance all until each is weighed, declines, or is given up."""
        while unknown := [
            one for one in self.candidates if not (one.is_over or one.is_refusal or one.weight is not None)
        ]:
            for one in unknown:
                one.advance()
                one.weigh(self.relevance)
            self._give_up()

    def _give_up(self) -> None:
        """Give up all refusals but the first, and the answers that are or will be lighter than the best."""
        best = self._heaviest()
        beaten = [one for one in self.candidates if best is not None and one.is_answer and one.most < best.most]
        for one in (*self._refusals()[1:], *beaten):
            if not one.is_over:
                one.give_up()

    def _chosen(self) -> Candidate:
        best, refusals = self._heaviest(), self._refusals()
        if best is not None and (best.is_enough or not refusals):
            return best
        return refusals[0] if refusals else self.candidates[0]

    def _heaviest(self) -> Candidate | None:
        weighed = [one for one in self.candidates if one.weight is not None and not one.is_given_up]
        return max(weighed, key=lambda one: one.most) if weighed else None

    def _refusals(self) -> list[Candidate]:
        return [one for one in self.candidates if one.is_refusal and not one.is_given_up]


class Resumed(Pieces):
    """A text of which the beginning was read before: its pieces come again, and then the rest."""

    def __init__(self, begun: Candidate) -> None:
        self._stream = begun.stream
        self._pieces = iter(begun.pieces)

    def __next__(self) -> str:
        piece = next(self._pieces, None)
        return next(self._stream) if piece is None else piece

    def close(self) -> None:
        """Stop generating."""
        self._stream.close()
        self._pieces = iter(())

    @property
    def completion(self) -> Completion:
        """What was said, once the text has ended or is closed."""
        return self._stream.completion
