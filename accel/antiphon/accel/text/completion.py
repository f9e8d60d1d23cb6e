"""The output of a language model: a stream of text pieces, and the completion at its end."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Self

from antiphon.accel.decoding.stats import FinishReason, Step, Summary, TokenLogprob, summarize
from antiphon.accel.engines.fair_lock import FairLock
from antiphon.accel.text.stop_strings import StopStrings
from antiphon.accel.text.thinking import Split, ThinkingReader, ThinkingStart

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request.

    Attributes:
        prompt_tokens: Number of prompt tokens, including the response prefix.
        completion_tokens: Number of generated tokens, including thinking, the end-of-sequence token
            and the stop string's tokens.
        response_prefix_tokens: Number of tokens that the response prefix added to the prompt; 0 for models on servers.
        reasoning_tokens: Number of generated tokens that are the model's thinking, including its marks.
    """

    prompt_tokens: int
    completion_tokens: int
    response_prefix_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Number of tokens of prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a completion's token: its characters, its forward pass and whether it was drafted.

    Attributes:
        start: Index of the first character of the text that became final with this token.
        end: End of these characters. It equals ``start`` for special tokens, tokens of the thinking, the first part
            of a character, and tokens after a stop string.
        step: Forward pass that emitted the token, counted from 0.
        is_drafted: Whether the token was drafted. Otherwise it is a bonus token; each step emits at
            most one bonus token.
    """

    start: int
    end: int
    step: int
    is_drafted: bool


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished completion.

    Attributes:
        text: The response prefix and the generated answer, without thinking, special tokens and the stop string.
        finish_reason: "stop" (end of sequence or stop string), "length" or "cancelled".
        tokens: Generated token ids, including the token that ended the text.
        temperature: Temperature with which the tokens were chosen.
        repetition_penalty: Repetition penalty with which the tokens were chosen.
        logprobs: Log-probabilities of each token, if requested.
        response_prefix: Beginning of ``text``; it was part of the prompt and was not generated.
        reasoning: The model's thinking before the answer; empty if there was none.
        ended_in_thinking: Whether generation ended before the thinking did, so that there is no answer.
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
    reasoning: str = ""
    ended_in_thinking: bool = False


class Piece(NamedTuple):
    """New text of an answer, or of the thinking before it."""

    text: str
    is_thinking: bool = False


class TextStream(Iterator[str]):
    """An iterator over the pieces of a text that is being generated; a ``with`` block closes it.

    Iterating yields the answer only; `next_piece` returns the model's thinking, too. A subclass implements
    `next_piece`, or `__next__` if there is no thinking.
    """

    def __next__(self) -> str:
        while (piece := self.next_piece()) is not None:
            if not piece.is_thinking:
                return piece.text
        raise StopIteration

    def next_piece(self) -> Piece | None:
        """Return the next piece of thinking or answer; None at the end."""
        text = next(self, None)
        return None if text is None else Piece(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def tokens_from(self, first: int) -> list[int]:
        """Return the ids of the tokens so far, from index ``first`` on; none if they are unknown."""
        return []

    def origins_from(self, first: int) -> list[Origin]:
        """Return the origins of the tokens so far, from index ``first`` on; none if they are unknown."""
        return []

    def logprobs_from(self, first: int) -> Sequence[TokenLogprob]:
        """Return the log-probabilities of the tokens so far, from index ``first`` on; none if they are unknown."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """Stop generating and free the memory of generation."""

    @property
    @abstractmethod
    def completion(self) -> Completion:
        """The completion, available after the stream has ended or was closed."""

    def to_end(self) -> Self:
        """Read the stream to its end, close it and return it, so that ``completion`` is available."""
        with self:
            for _ in self:
                pass
        return self


class Stream(TextStream):
    """A stream of a local model; its joined pieces are the text of the completion.

    The model's thinking is not part of the text. Stop strings are only searched in the answer.

    Forward passes run only while the caller waits for a piece, and never after the stream is closed
    or dropped. Another thread may close the stream; a forward pass in progress is then finished
    first. Errors are raised when the next piece is read.

    Args:
        prompt_tokens: Number of prompt tokens, including the response prefix.
        logprobs: Log-probabilities of each token; a list to which the steps append.
        weights: "int8" or "int4" for compressed weights, for the summary.
        response_prefix: Text at the end of the prompt with which the completion starts. It is the first piece,
            available before the first forward pass.
        context: Token ids of the end of the prompt, if there is a response prefix.
        end_tokens: Tokens that end the text; they are not part of it.
        thinking: How thinking is separated from the answer; None: the model does not think.
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
        logprobs: Sequence[TokenLogprob] = (),
        weights: str = "",
        response_prefix: str = "",
        context: Sequence[int] = (),
        response_prefix_tokens: int = 0,
        end_tokens: Sequence[int] = (),
        thinking: ThinkingStart | None = None,
    ) -> None:
        self._remaining = steps
        self._temperature = temperature
        self._repetition_penalty = repetition_penalty
        self._reader = ThinkingReader(tokenizer, thinking, context)
        self._stops = StopStrings(stop)
        self._end_tokens = frozenset(end_tokens)
        self.prompt_tokens = prompt_tokens
        self._logprobs = logprobs
        self._weights = weights
        self._response_prefix = response_prefix
        self._response_prefix_tokens = response_prefix_tokens
        self._lock = FairLock()  # one thread may read the stream while another one closes it
        self._steps: list[Step] = []
        self._pieces: list[str] = []
        self._reasoning: list[str] = []
        self._ready: deque[Piece] = deque()  # pieces of the last step that were not requested yet
        self._emitted: list[tuple[int, tuple[int, bool]]] = []  # token, its step, and whether it was drafted
        self._ends: list[int] = []  # end in the text of the final characters after each token
        self._finish: FinishReason | None = None
        self._is_closed = False

    def next_piece(self) -> Piece | None:
        """Return the next piece of thinking or answer; None at the end."""
        try:
            while not self._ready:
                if (split := self._lock.run(self._advance)) is None:
                    return None
                given = (Piece(split.thinking, True), Piece(split.answer))
                self._ready += [piece for piece in given if piece.text]
        except BaseException:
            self._is_closed = True  # an interrupted read may have lost a piece, so continuing would leave a gap
            raise
        return self._ready.popleft()

    @property
    def completion(self) -> Completion:
        """The completion, available after the stream has ended or was closed.

        Raises:
            RuntimeError: The stream has not ended yet, or ended in an error.
        """
        if self._finish is None:
            raise RuntimeError("The stream has not ended; iterate over it to its end, or close it, for its completion.")
        tokens, text = tuple(self.tokens_from(0)), "".join(self._pieces)
        ends = [*(min(end, len(text)) for end in self._ends[:-1]), len(text)]  # the last token gets the rest
        return Completion(
            text=text,
            finish_reason=self._finish,
            usage=Usage(self.prompt_tokens, len(tokens), self._response_prefix_tokens, self.reasoning_tokens),
            steps=summarize(self._steps, self._weights),
            tokens=tokens,
            temperature=self._temperature,
            repetition_penalty=self._repetition_penalty,
            origins=tuple(self._origins(0, ends)),
            logprobs=tuple(self._logprobs[: len(tokens)]),
            response_prefix=self._response_prefix,
            reasoning="".join(self._reasoning),
            ended_in_thinking=self._reader.has_thought and self._reader.state != "answer",
        )

    @property
    def reasoning_tokens(self) -> int:
        """Number of tokens of the thinking so far."""
        return self._reader.thinking_tokens

    def tokens_from(self, first: int) -> list[int]:
        """Return the ids of the tokens so far, from index ``first`` on."""
        return [token for token, _ in self._emitted[first:]]

    def origins_from(self, first: int) -> list[Origin]:
        """Return the origins of the tokens so far, from index ``first`` on, even if their text is not streamed yet."""
        return self._origins(first, self._ends)

    def _origins(self, first: int, ends: Sequence[int]) -> list[Origin]:
        """Return the origins of the tokens from ``first`` on; ``ends`` has the end of every token in the text."""
        starts = (ends[first - 1] if first else len(self._response_prefix), *ends[first:])
        sources = (source for _, source in self._emitted[first:])
        return [Origin(start, end, *source) for start, end, source in zip(starts, ends[first:], sources, strict=False)]

    def logprobs_from(self, first: int) -> Sequence[TokenLogprob]:
        """Return the log-probabilities of the tokens so far, from index ``first`` on."""
        return self._logprobs[first : len(self._ends)]

    def close(self) -> None:
        """Stop generating and free the memory of generation; the completion is the text so far."""
        self._is_closed = True  # a thread that reads the stream stops before its next forward pass
        self._lock.run(partial(self._end, "cancelled"))

    def _advance(self) -> Split | None:
        """Run one forward pass; return its text, or None at the end. The lock is only held during the call.

        The first call returns the response prefix, if there is one.
        """
        if self._finish or self._is_closed:
            return None
        is_prefix = bool(self._response_prefix) and not self._pieces
        split, finish = (Split("", self._response_prefix), None) if is_prefix else self._read(next(self._remaining))
        self._pieces.append(split.answer)
        self._reasoning.append(split.thinking)
        if finish:
            self._end(finish)
        return split

    def _read(self, step: Step) -> tuple[Split, FinishReason | None]:
        """Return the text of a step, and the finish reason if the step is the last one."""
        thinking = answer = ""
        for count, token in enumerate(step.tokens, start=1):
            split = Split() if token in self._end_tokens else self._reader.push(token)
            self._emitted.append((token, (len(self._steps), count <= step.accepted)))
            self._ends.append((self._ends[-1] if self._ends else len(self._response_prefix)) + len(split.answer))
            thinking += split.thinking
            answer += self._stops.push(split.answer, self._reader.pending)
            if self._stops.is_found:
                kept = replace(step, tokens=step.tokens[:count], accepted=min(step.accepted, count), finish="stop")
                self._steps.append(kept)
                return Split(thinking, answer), "stop"
        self._steps.append(step)
        if step.finish:
            rest = self._reader.finish()
            thinking += rest.thinking
            answer += self._stops.finish(rest.answer)
        return Split(thinking, answer), "stop" if self._stops.is_found else step.finish

    def _end(self, finish: FinishReason) -> None:
        self._finish = self._finish or finish
        self._remaining = iter(())  # closes the dropped `EngineRequest.steps`: the request leaves the scheduler
