"""What a language model said: the text while it grows, the text when it ends, and what it cost."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Self

from antiphon.accel.decoding.logprobs import TokenLogprob
from antiphon.accel.decoding.stats import FinishReason, Step, Summary, summarize
from antiphon.accel.engines.fair_lock import FairLock
from antiphon.accel.text.detokenize import Detokenizer
from antiphon.accel.text.stop_strings import StopStrings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Completion", "Origin", "TextStream", "Stream", "Usage"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens read and written; the end-of-sequence token and those of a stop string count as written."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        """Both together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Origin:
    """How a token came to be: the forward that emitted it, counted from 0, and whether a draft had guessed it.

    A token that no draft had guessed is the model's own next one; every forward emits one at most. ``start`` and
    ``end`` are the characters of the text that the token settled: none for a special token, the first half of a
    character, or what a stop string cut off.
    """

    start: int
    end: int
    step: int
    is_drafted: bool


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished answer: its text without special tokens and without the stop string, and how it came to be.

    ``finish_reason`` is "stop" (end of sequence or stop string), "length" or "cancelled". ``tokens`` are the ids that
    the model emitted, up to the one that ended the text, and ``origins`` how each of them came to be; ``temperature``
    and ``repetition_penalty`` are what they were chosen with, and ``response_prefix`` is what the text was told to begin with.
    ``logprobs`` has one for each token, where asked for.
    """

    text: str
    finish_reason: FinishReason
    usage: Usage
    steps: Summary
    tokens: tuple[int, ...]
    temperature: float = 0.0
    repetition_penalty: float = 1.0
    origins: tuple[Origin, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    response_prefix: str = ""


class TextStream(Iterator[str]):
    """A text piece by piece; `with` closes it at its end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Stop generating."""

    @property
    @abstractmethod
    def completion(self) -> Completion:
        """What was said, once the text has ended or is closed."""

    def to_end(self) -> Self:
        """Read all that is left, and close: then what was said is there whole."""
        with self:
            for _ in self:
                pass
        return self


class Stream(TextStream):
    """Text as it is generated: iterate over its pieces, whose concatenation is the completion's text.

    Each piece costs at least one forward of the model, run when the piece is asked for: nothing runs in between, and
    nothing runs on once the stream is closed or dropped. It may be closed from another thread; the forward under
    way then ends first. An error in generation is raised where the next piece was asked for.

    ``chosen`` are the temperature and repetition penalty that tokens are chosen with, for the completion to say;
    ``likelihood`` says the log-probability of what was chosen, where somebody counts it.
    ``logprobs`` is filled by the steps, one for each token. ``weights`` are those of few bits that were asked for, and
    ``response_prefix`` what the text was told to begin with.
    """

    def __init__(
        self,
        steps: Iterator[Step],
        tokenizer: PreTrainedTokenizerBase,
        *,
        prompt_tokens: int,
        stop: Sequence[str] = (),
        chosen: tuple[float, float] = (0.0, 1.0),
        likelihood: Callable[[], float | None] = lambda: None,
        logprobs: Sequence[TokenLogprob] = (),
        weights: str = "",
        response_prefix: str = "",
    ) -> None:
        self._running = steps
        self._likelihood = likelihood
        self._chosen = chosen
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(stop)
        self.prompt_tokens = prompt_tokens
        self._logprobs = logprobs
        self._weights = weights
        self._response_prefix = response_prefix
        self._lock = FairLock()  # for closing while somebody else reads
        self._steps: list[Step] = []
        self._pieces: list[str] = []
        self._emitted: list[tuple[int, tuple[int, bool]]] = []  # each token, its step, and whether a draft had it
        self._ends: list[int] = []  # for each token, how many characters are settled once it is read
        self._finish: FinishReason | None = None
        self._is_closed = False

    def __next__(self) -> str:
        try:
            while (piece := self._lock.run(self._advance)) == "":
                pass
        except BaseException:
            self._is_closed = True  # a piece may be lost to Ctrl-C; the next one would leave a gap
            raise
        if piece is None:
            raise StopIteration
        return piece

    @property
    def completion(self) -> Completion:
        """What was said, once the stream has ended or is closed.

        Raises:
            RuntimeError: the stream has not ended yet, or ended in an error.
        """
        if self._finish is None:
            raise RuntimeError("The stream has not ended; iterate over it to its end, or close it, for its completion.")
        tokens = tuple(token for step in self._steps for token in step.tokens)
        temperature, repetition_penalty = self._chosen
        text = "".join(self._pieces)
        return Completion(
            text=text,
            finish_reason=self._finish,
            usage=Usage(self.prompt_tokens, len(tokens)),
            steps=summarize(self._steps, self._weights),
            tokens=tokens,
            temperature=temperature,
            repetition_penalty=repetition_penalty,
            origins=_origins(self._steps, self._ends, len(text)),
            logprobs=tuple(self._logprobs[: len(tokens)]),
            response_prefix=self._response_prefix,
        )

    @property
    def log_probability(self) -> float:
        """How likely the model finds the tokens that it has emitted until now, in nats: it only ever falls.

        Raises:
            RuntimeError: it was not counted; streams of `LanguageModel.stream_batch` count it.
        """
        found = self._likelihood()
        if found is None:
            raise RuntimeError("Log-probabilities were not counted; ask for the text with stream_batch.")
        return found

    def tokens_from(self, first: int) -> list[int]:
        """The ids of the tokens so far, from this one on: of a stream that goes on, what its pieces were made of."""
        return [token for token, _ in self._emitted[first:]]

    def origins_from(self, first: int) -> list[Origin]:
        """How the tokens so far came to be, from this one on; the characters of the last ones may be held back yet."""
        ends = self._ends[first:]
        starts = (self._ends[first - 1] if first else 0, *ends)
        how = (came for _, came in self._emitted[first:])
        return [Origin(start, end, *came) for start, end, came in zip(starts, ends, how, strict=False)]

    def logprobs_from(self, first: int) -> Sequence[TokenLogprob]:
        """The logprobs of the tokens so far, from this one on."""
        return self._logprobs[first : len(self._ends)]

    def close(self) -> None:
        """Stop generating and free what generation held; the completion is what was said until now."""
        self._is_closed = True  # seen by whoever is reading, before its next forward
        self._lock.run(partial(self._end, "cancelled"))

    def _advance(self) -> str | None:
        """The text of one more forward, or None at the end. Others take their turns between two of them."""
        if self._finish or self._is_closed:
            return None
        piece, finish = self._read(next(self._running))
        self._pieces.append(piece)
        if finish:
            self._end(finish)
        return piece

    def _read(self, step: Step) -> tuple[str, FinishReason | None]:
        """The text of a step, and why it is the last one if it is."""
        text = ""
        for count, token in enumerate(step.tokens, start=1):
            piece = self._detokenizer.push(token)
            self._emitted.append((token, (len(self._steps), count <= step.accepted)))
            self._ends.append((self._ends[-1] if self._ends else 0) + len(piece))
            text += self._stops.push(piece, self._detokenizer.pending)
            if self._stops.is_found:
                kept = replace(step, tokens=step.tokens[:count], accepted=min(step.accepted, count), finish="stop")
                self._steps.append(kept)
                return text, "stop"
        self._steps.append(step)
        if step.finish:
            text += self._stops.finish(self._detokenizer.pending)
        return text, "stop" if self._stops.is_found else step.finish

    def _end(self, finish: FinishReason) -> None:
        self._finish = self._finish or finish
        self._running = iter(())  # dropping the engine's generator ends it and frees its cache


def _origins(steps: Sequence[Step], ends: Sequence[int], length: int) -> tuple[Origin, ...]:
    """How each token came to be; the last one also settles what no later token could change any more."""
    cut = [*(min(end, length) for end in ends[:-1]), length]
    spans = zip((0, *cut), cut, strict=False)
    drafted = ((step, row < taken.accepted) for step, taken in enumerate(steps) for row in range(len(taken.tokens)))
    return tuple(Origin(*span, *how) for span, how in zip(spans, drafted, strict=False))
