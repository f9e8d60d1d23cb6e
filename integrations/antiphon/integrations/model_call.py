"""One call of a language model: prompt, parameters, stream and parsed output. No framework is imported."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from antiphon.accel import Completion, TextModel
from antiphon.accel.text.completion import Piece, TextStream
from antiphon.accel.text.messages import PromptInput
from antiphon.accel.text.parameters import ContextLengthError
from antiphon.accel.text.tool_calls import ParsedOutput, parse_tool_calls, visible_text
from antiphon.pipelines import passage_references
from antiphon.pipelines.markers import MarkedStream
from antiphon.retrieval import Passage

Result = TypeVar("Result")

# Separate threads, so that generation does not occupy the event loop's default executor.
_THREADS = ThreadPoolExecutor(thread_name_prefix="antiphon")


class AnswerState(NamedTuple):
    """The state of a streamed answer.

    Attributes:
        text: the text so far, without a last part that may still become a tool call.
        delta: the new part of the text.
        reasoning: the thinking so far.
        thinking_delta: the new part of the thinking.
        completion: the completion; only in the last state.
    """

    text: str
    delta: str
    reasoning: str = ""
    thinking_delta: str = ""
    completion: Completion | None = None


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One call: model, prompt, parameters and tools.

    Attributes:
        language_model: the model that answers.
        model: the name that the user gave to the model.
        prompt: text, messages or a conversation with tools.
        passages: references of the call.
        parameters: keyword arguments of `LanguageModel.stream`.
        timeout: seconds for the whole answer; None is no limit.
        tools: the offered tools: for each name, the schema of the arguments.
        assistant_prefix: start of a forced tool call, which the prompt already contains.
        allows_parallel_calls: whether an answer may have several tool calls; if False, only the
            first one is used.
        num_marked: the answer can cite the first ``num_marked`` passages by markers such as
            ``[1]``; 0: no markers.
        context_error: the error class for a prompt that is too long; frameworks have their own.
    """

    language_model: TextModel
    model: str
    prompt: PromptInput
    passages: tuple[Passage, ...]
    parameters: Mapping[str, Any]
    timeout: float | None = None
    tools: Mapping[str, Any] = field(default_factory=dict)
    assistant_prefix: str = ""
    allows_parallel_calls: bool = True
    num_marked: int = 0
    context_error: type[ContextLengthError] = ContextLengthError

    def states(self) -> Iterator[AnswerState]:
        """Generate the answer; yield its state after each new part.

        Raises:
            TimeoutError: the answer was not finished in time.
        """
        reader = _AnswerReader(self)
        with self._stream() as stream:
            for piece in iter(stream.next_piece, None):
                yield from reader.add(piece)
        yield reader.end(stream.completion)

    async def astates(self) -> AsyncGenerator[AnswerState, None]:
        """Generate the answer in a thread; yield its state after each part. The errors are the same as in `states`."""
        reader = _AnswerReader(self)
        stream = await in_thread(self._stream)
        async with aclosing(read_in_thread(stream)) as pieces:
            async for piece in pieces:
                for state in reader.add(piece):
                    yield state
        yield reader.end(stream.completion)

    def complete(self) -> Completion:
        """Generate the whole completion. The errors are the same as in `states`."""
        return deque(self.states(), maxlen=1)[0].completion  # type: ignore[return-value]  # the last state has it

    async def acomplete(self) -> Completion:
        """Generate the whole completion in a thread. The errors are the same as in `states`."""
        last = None
        async with aclosing(self.astates()) as states:
            async for state in states:
                last = state.completion
        return last  # type: ignore[return-value]  # the last state has it

    def parse_output(self, completion: Completion) -> ParsedOutput:
        """Separate the answer's text from its tool calls."""
        text = self.assistant_prefix + completion.text
        parsed = parse_tool_calls(text, self.tools) if self.tools else ParsedOutput(text)
        return parsed if self.allows_parallel_calls else parsed.first_call_only()

    def facts(self, completion: Completion) -> dict[str, Any]:
        """Return the finish reason and the step statistics, for the metadata of an answer."""
        facts = {"finish_reason": completion.finish_reason, "steps": completion.steps.as_dict()}
        return facts | ({"ended_in_thinking": True} if completion.ended_in_thinking else {})

    def _stream(self) -> TextStream:
        references = passage_references(self.passages)
        try:
            stream = self.language_model.stream(self.prompt, references=references, **self.parameters)
        except ContextLengthError as error:
            raise self.context_error(str(error)) from error
        return MarkedStream(stream, self.passages[: self.num_marked]) if self.num_marked else stream


class _AnswerReader:
    """Collects the pieces of an answer, and checks its time limit."""

    def __init__(self, call: ModelCall) -> None:
        self._call = call
        self._text = call.assistant_prefix
        self._shown = self._reasoning = ""
        self._end = None if call.timeout is None else monotonic() + call.timeout

    def add(self, piece: Piece) -> Iterator[AnswerState]:
        """Add a piece; yield the new state, if there is anything new to show."""
        if self._end is not None and monotonic() > self._end:
            raise TimeoutError(
                f"The text was not finished within {self._call.timeout} seconds; raise timeout, or lower max_tokens."
            )
        if piece.is_thinking:
            self._reasoning += piece.text
            yield AnswerState(self._shown, "", self._reasoning, piece.text)
            return
        self._text += piece.text
        tools, known = self._call.tools, self._shown
        self._shown = visible_text(self._text, tools, len(known)) if tools else self._text
        if delta := self._shown[len(known) :]:
            yield AnswerState(self._shown, delta, self._reasoning)

    def end(self, completion: Completion) -> AnswerState:
        """Return the last state."""
        content = self._call.parse_output(completion).content
        return AnswerState(content, content[len(self._shown) :], completion=completion)


async def read_in_thread(stream: TextStream) -> AsyncGenerator[Piece, None]:
    """Yield the pieces of a stream. Close the stream at its end, or when the reading is cancelled.

    A forward pass runs only while the reader waits for a piece, so generation never runs ahead of the reader.
    """
    try:
        while (piece := await in_thread(stream.next_piece)) is not None:
            yield piece
    finally:
        await in_thread(stream.close)


async def in_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function in a thread of this module's own pool."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, function, *arguments)
