"""The output of a language model: a stream of text pieces while it is generated, then the completion."""

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

__all__ = ["Completion", "Origin", "Stream", "TextStream", "Usage"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request.

    Attributes:
        prompt_tokens: Number of prompt tokens, with those of the response prefix.
        completion_tokens: Number of generated tokens, including an end-of-sequence token and those of a stop string.
        response_prefix_tokens: Number of tokens that the response prefix added to the prompt; 0 for models on servers.
    """

    prompt_tokens: int
    completion_tokens: int
    response_prefix_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a token of a completion came from.

    Attributes:
        start: First character of the text that became final with this token.
        end: End of these characters; equal to ``start`` for a special token, the first half of a character, or a token
            that a stop string cut off.
        step: Forward pass that emitted the token, counted from 0.
        is_drafted: Whether a draft had proposed it. Otherwise it is the bonus token; each step emits one at most.
    """

    start: int
    end: int
    step: int
    is_drafted: bool


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished completion.

    Attributes:
        text: The response prefix and the generated text, without special tokens and without the stop string.
        finish_reason: "stop" (end of sequence or stop string), "length" or "cancelled".
        usage: Token counts.
        steps: Summary of the decoding steps.
        tokens: Generated token ids, including the one that ended the text.
        temperature: Temperature that the tokens were chosen with.
        repetition_penalty: Repetition penalty that the tokens were chosen with.
        origins: Origin of each token.
        logprobs: Log-probabilities of each token, if requested.
        response_prefix: Beginning of the text that was part of the prompt and not generated.
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
    """An iterator over the pieces of a text that is being generated, and a context manager that closes it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Stop generating and free what generation holds."""

    @property
    @abstractmethod
    def completion(self) -> Completion:
        """The completion, after the stream has ended or was closed."""

    def to_end(self) -> Self:
        """Read the stream to its end, close it and return it, so that ``completion`` is available."""
        with self:
            for _ in self:
                pass
        return self


class Stream(TextStream):
    """A stream of a local model; its joined pieces are the text of the completion.

    Forward passes run only while a piece is requested, at least one for each piece, and none after the stream is closed
    or dropped. It may be closed from another thread; a forward pass in progress is then finished first. Errors are
    raised to the caller that requests the next piece.

    Args:
        steps: The decoding steps.
        tokenizer: Tokenizer of the model.
        prompt_tokens: Number of prompt tokens, with those of the response prefix.
        stop: Stop strings, which are searched in the generated text.
        temperature: Temperature that tokens are chosen with, for the completion.
        repetition_penalty: Repetition penalty that tokens are chosen with, for the completion.
        log_probability: Returns the log-probability of the tokens so far in nats, or None if it is not computed.
        logprobs: Log-probabilities of each token; a list that the steps append to.
        weights: "int8" or "int4" for compressed weights, for the summary.
        response_prefix: Text at the end of the prompt that the completion starts with. It is the first piece, which is
            there before the first forward pass.
        context: Token ids of the end of the prompt, if there is a response prefix.
        response_prefix_tokens: Number of tokens that the response prefix added to the prompt.
    """

    def __init__(
        self,
        steps: Iterator[Step],
        tokenizer: PreTrainedTokenizerBase,
        *,
        prompt_tokens: int,
        stop: Sequence[str] = (),
        temperature: float = 0.0,
        repetition_penalty: float = 1.0,
        log_probability: Callable[[], float | None] = lambda: None,
        logprobs: Sequence[TokenLogprob] = (),
        weights: str = "",
        response_prefix: str = "",
        context: Sequence[int] = (),
        response_prefix_tokens: int = 0,
    ) -> None:
        self._remaining = steps
        self._log_probability = log_probability
        self._temperature = temperature
        self._repetition_penalty = repetition_penalty
        self._detokenizer = Detokenizer(tokenizer, context)
        self._stops = StopStrings(stop)
        self.prompt_tokens = prompt_tokens
        self._logprobs = logprobs
        self._weights = weights
        self._response_prefix = response_prefix
        self._response_prefix_tokens = response_prefix_tokens
        self._lock = FairLock()  # one thread may read the stream while another one closes it
        self._steps: list[Step] = []
        self._pieces: list[str] = []
        self._emitted: list[tuple[int, tuple[int, bool]]] = []  # token, its step, and whether it was drafted
        self._ends: list[int] = []  # end in the text of the final characters after each token
        self._finish: FinishReason | None = None
        self._is_closed = False

    def __next__(self) -> str:
        try:
            while (piece := self._lock.run(self._advance)) == "":
                pass
        except BaseException:
            self._is_closed = True  # an interrupted read may have lost a piece, so continuing would leave a gap
            raise
        if piece is None:
            raise StopIteration
        return piece

    @property
    def completion(self) -> Completion:
        """The completion, after the stream has ended or was closed.

        Raises:
            RuntimeError: The stream has not ended yet, or ended in an error.
        """
        if self._finish is None:
            raise RuntimeError("The stream has not ended; iterate over it to its end, or close it, for its completion.")
        tokens = tuple(token for step in self._steps for token in step.tokens)
        text = "".join(self._pieces)
        return Completion(
            text=text,
            finish_reason=self._finish,
            usage=Usage(self.prompt_tokens, len(tokens), self._response_prefix_tokens),
            steps=summarize(self._steps, self._weights),
            tokens=tokens,
            temperature=self._temperature,
            repetition_penalty=self._repetition_penalty,
            origins=_origins(self._steps, self._ends, len(self._response_prefix), len(text)),
            logprobs=tuple(self._logprobs[: len(tokens)]),
            response_prefix=self._response_prefix,
        )

    @property
    def log_probability(self) -> float:
        """Log-probability of the tokens emitted so far, in nats; it never increases.

        Raises:
            RuntimeError: It is not computed; only streams of `LanguageModel.stream_batch` have it.
        """
        found = self._log_probability()
        if found is None:
            raise RuntimeError("Log-probabilities are not computed for this stream; use stream_batch.")
        return found

    def tokens_from(self, first: int) -> list[int]:
        """Return the ids of the tokens so far, from index ``first`` on."""
        return [token for token, _ in self._emitted[first:]]

    def origins_from(self, first: int) -> list[Origin]:
        """Return the origins of the tokens so far, from ``first`` on; the last characters may not be streamed yet."""
        ends = self._ends[first:]
        starts = (self._ends[first - 1] if first else len(self._response_prefix), *ends)
        sources = (source for _, source in self._emitted[first:])
        return [Origin(start, end, *source) for start, end, source in zip(starts, ends, sources, strict=False)]

    def logprobs_from(self, first: int) -> Sequence[TokenLogprob]:
        """Return the log-probabilities of the tokens so far, from index ``first`` on."""
        return self._logprobs[first : len(self._ends)]

    def close(self) -> None:
        """Stop generating and free what generation holds; the completion is the text so far."""
        self._is_closed = True  # a thread that reads the stream stops before its next forward pass
        self._lock.run(partial(self._end, "cancelled"))

    def _advance(self) -> str | None:
        """Run one forward pass; return its text, or None at the end. The lock is released between two calls.

        The first call returns the response prefix, if there is one.
        """
        if self._finish or self._is_closed:
            return None
        is_prefix = bool(self._response_prefix) and not self._pieces
        piece, finish = (self._response_prefix, None) if is_prefix else self._text_of(next(self._remaining))
        self._pieces.append(piece)
        if finish:
            self._end(finish)
        return piece

    def _text_of(self, step: Step) -> tuple[str, FinishReason | None]:
        """Return the text of a step, and the finish reason if it is the last one."""
        text = ""
        for count, token in enumerate(step.tokens, start=1):
            piece = self._detokenizer.push(token)
            self._emitted.append((token, (len(self._steps), count <= step.accepted)))
            self._ends.append((self._ends[-1] if self._ends else len(self._response_prefix)) + len(piece))
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
        self._remaining = iter(())  # dropping the steps ends generation and frees the KV cache


def _origins(steps: Sequence[Step], ends: Sequence[int], start: int, length: int) -> tuple[Origin, ...]:
    """Return the origin of each token. The rest of the text belongs to the last one, since no token follows it."""
    final = [*(min(end, length) for end in ends[:-1]), length]
    spans = zip((start, *final), final, strict=False)
    sources = ((index, row < step.accepted) for index, step in enumerate(steps) for row in range(len(step.tokens)))
    return tuple(Origin(*span, *source) for span, source in zip(spans, sources, strict=False))
