"""Each passage asked by itself, and the answer that the model is surest of. Knows nothing of how passages are found.

A small reader answers better from one passage than from several, each of which distracts it. So every passage has a
prompt of its own, these share forwards, and of the answers that are no refusals the likeliest wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard, runtime_checkable

from antiphon.accel import Completion, PrefixCache, TextModel
from antiphon.accel.text.completion import Pieces
from antiphon.accel.text.messages import PromptInput
from antiphon.pipelines.prompt import DECLINED, Prompt, is_refusal, prompt_format, reader_prompt
from antiphon.retrieval import Passage

_OPENING = len(DECLINED) // 2
"""So many characters of a refusal, and nothing else begins like it."""


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
    """The answer from one passage while it grows; ``is_over`` once it has ended or was given up."""

    asked: AskedPassage
    stream: WeighedPieces
    pieces: list[str] = field(default_factory=list)
    is_over: bool = False
    is_given_up: bool = False

    @property
    def is_refusal(self) -> bool:
        """Whether it declines, or begins to."""
        text = "".join(self.pieces).strip()
        return is_refusal(text) if self.is_over else text.startswith(DECLINED[:_OPENING])

    @property
    def is_answer(self) -> bool:
        """Whether it says something that is no refusal, and cannot become one."""
        text = "".join(self.pieces).strip()
        return not self.is_given_up and not self.is_refusal and not DECLINED.startswith(text)

    def advance(self) -> None:
        """Take one more piece, or note that there is none."""
        try:
            self.pieces.append(next(self.stream))
        except StopIteration:
            self.is_over = True

    def give_up(self) -> None:
        """Have it say no more."""
        self.stream.close()
        self.is_over = self.is_given_up = True


def surest_answer(
    language_model: WeighingModel,
    asked: Sequence[AskedPassage],
    prefixes: Sequence[PrefixCache] = (),
    **generation: Any,
) -> tuple[AskedPassage, Pieces]:
    """The passage whose answer the model is surest of, and that answer, which may go on growing while it is read.

    It is the answer with the highest total log-probability of those that are no refusals, and the first passage's
    refusal where there is nothing else. What begins as a refusal beside an answer, or can no longer be the likeliest,
    is given up at once. ``generation`` goes to `LanguageModel.stream_batch`, and so do ``prefixes``.
    """
    streams = language_model.stream_batch(
        [one.tokenized for one in asked],
        references=[one.references for one in asked],
        prefixes=prefixes,
        **generation,
    )
    candidates = [Candidate(*pair) for pair in zip(asked, streams, strict=True)]
    try:
        chosen = _race(candidates)
    except BaseException:
        for one in candidates:
            one.stream.close()
        raise
    return chosen.asked, Resumed(chosen)


def _race(candidates: Sequence[Candidate]) -> Candidate:
    """Advance all until it is known which one wins; it may not be over yet."""
    while running := [one for one in candidates if not one.is_over]:
        for one in running:
            one.advance()
        answers = [one for one in candidates if one.is_answer]
        if answers:
            _give_up(running, _best(answers))
        left = [one for one in running if not one.is_over]
        if left == answers and len(left) == 1:
            return left[0]
    return _best([one for one in candidates if one.is_answer]) or candidates[0]


def _best(answers: Sequence[Candidate]) -> Candidate | None:
    """The likeliest of those that have ended."""
    ended = [one for one in answers if one.is_over]
    return max(ended, key=lambda one: one.stream.log_probability) if ended else None


def _give_up(running: Sequence[Candidate], best: Candidate | None) -> None:
    """Give up those that decline while others answer, and those that are less likely than what has ended already."""
    for one in running:
        is_beaten = best is not None and one.stream.log_probability < best.stream.log_probability
        if not one.is_over and (one.is_refusal or is_beaten):
            one.give_up()


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
