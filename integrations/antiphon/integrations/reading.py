"""A stream of text read from an event loop, or against the clock. Knows no framework."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any, TypeVar

from antiphon.accel import Completion
from antiphon.accel.text.completion import Pieces

Result = TypeVar("Result")

# Forwards take turns anyway; threads of their own keep them out of the way of whatever else a loop sends to threads.
_THREADS = ThreadPoolExecutor(thread_name_prefix="antiphon")


class Timed(Pieces):
    """A stream that has so many seconds: the piece that is asked for after them is an error instead."""

    def __init__(self, stream: Pieces, seconds: float) -> None:
        if seconds <= 0:
            raise ValueError(f"timeout is {seconds}; it must be above 0 seconds.")
        self._stream = stream
        self._seconds = seconds
        self._end = monotonic() + seconds

    def __next__(self) -> str:
        if monotonic() > self._end:
            raise TimeoutError(
                f"The text was not finished within {self._seconds} seconds; allow more, or ask for less."
            )
        return next(self._stream)

    def close(self) -> None:
        """Stop generating."""
        self._stream.close()

    @property
    def completion(self) -> Completion:
        """What was said, once the stream has ended or is closed."""
        return self._stream.completion


class AsyncReading:
    """A stream read from an event loop, which goes on with other work while the model runs in a thread.

    Each forward is run when its piece is awaited, so nothing runs ahead of the reader; and leaving the ``async with``,
    by a cancellation too, ends the generation: at most the forward under way is finished.
    """

    def __init__(self, begin: Callable[[], Pieces]) -> None:
        self._begin = begin
        self._stream: Pieces | None = None

    async def __aenter__(self) -> AsyncReading:
        self._stream = await _in_thread(self._begin)
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._stream is not None:
            await _in_thread(self._stream.close)

    def __aiter__(self) -> AsyncReading:
        return self

    async def __anext__(self) -> str:
        piece: str | None = await _in_thread(next, self._stream, None)  # StopIteration cannot cross into a future
        if piece is None:
            raise StopAsyncIteration
        return piece

    @property
    def completion(self) -> Completion:
        """What was said, once the stream has ended.

        Raises:
            RuntimeError: it has not begun, or not ended.
        """
        if self._stream is None:
            raise RuntimeError("The stream has not begun; enter it with `async with` first.")
        return self._stream.completion


async def _in_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    return await asyncio.get_running_loop().run_in_executor(_THREADS, function, *arguments)
