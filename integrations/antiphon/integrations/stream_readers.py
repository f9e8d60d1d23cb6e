"""Read a text stream asynchronously, or with a time limit. Independent of frameworks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any, TypeVar

from antiphon.accel import Completion
from antiphon.accel.text.completion import Piece, TextStream

Result = TypeVar("Result")

# Separate threads, so that generation does not occupy the event loop's default executor.
_THREADS = ThreadPoolExecutor(thread_name_prefix="antiphon")


class TimedStream(TextStream):
    """A stream with a time limit: the next piece after the limit raises `TimeoutError`.

    Args:
        stream: the stream to read.
        seconds: time limit from now on.

    Raises:
        ValueError: ``seconds`` is not positive.
    """

    def __init__(self, stream: TextStream, seconds: float) -> None:
        if seconds <= 0:
            raise ValueError(f"timeout is {seconds}; it must be above 0 seconds.")
        self._stream = stream
        self._seconds = seconds
        self._end = monotonic() + seconds

    def next_piece(self) -> Piece | None:
        """Return the next piece of thinking or answer; None at the end."""
        if monotonic() > self._end:
            raise TimeoutError(
                f"The text was not finished within {self._seconds} seconds; raise timeout, or lower max_tokens."
            )
        return self._stream.next_piece()

    def close(self) -> None:
        """Stop generating."""
        self._stream.close()

    @property
    def completion(self) -> Completion:
        """The completion, once the stream has ended or is closed."""
        return self._stream.completion


class AsyncStreamReader:
    """Reads a stream asynchronously, while the model runs in a thread.

    A forward pass runs only when the next piece is awaited, so generation never runs ahead of the reader. Leaving the
    ``async with``, also by cancellation, ends the generation after the current forward pass. Iterating yields the
    pieces of thinking and answer.

    Args:
        begin: starts the stream; called in the thread.
    """

    def __init__(self, begin: Callable[[], TextStream]) -> None:
        self._begin = begin
        self._stream: TextStream | None = None

    async def __aenter__(self) -> AsyncStreamReader:
        self._stream = await _in_thread(self._begin)
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._stream is not None:
            await _in_thread(self._stream.close)

    def __aiter__(self) -> AsyncStreamReader:
        return self

    async def __anext__(self) -> Piece:
        piece = None if self._stream is None else await _in_thread(self._stream.next_piece)
        if piece is None:
            raise StopAsyncIteration
        return piece

    @property
    def completion(self) -> Completion:
        """The completion, once the stream has ended.

        Raises:
            RuntimeError: the stream has not started, or not ended.
        """
        if self._stream is None:
            raise RuntimeError("The stream has not started; enter it with `async with` first.")
        return self._stream.completion


async def _in_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    return await asyncio.get_running_loop().run_in_executor(_THREADS, function, *arguments)
