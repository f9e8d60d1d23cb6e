"""Server-sent events, and cancellation of jobs whose client disconnects, for all endpoints that generate text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse

from antiphon.pipelines.server.errors import ApiError, error_body, to_api_error
from antiphon.pipelines.server.request_queue import CollectedText, Event, GenerationJob

Result = TypeVar("Result")

CLIENT_DISCONNECTED = 499
"""The status that nginx uses for a client that disconnected; it appears in the log only."""

DONE = "data: [DONE]\n\n"

KEEP_ALIVE = ": waiting\n\n"
"""A comment, which clients ignore. It tells proxies that end silent responses that this response is alive."""

FIRST_SECONDS = 2.0
"""Seconds after which a stream begins even if it has no line yet."""

KEEP_ALIVE_SECONDS = 5.0
"""Maximum seconds between two lines or comments."""


def sse_event(body: Any, name: str | None = None) -> str:
    """Format a server-sent event.

    Args:
        name: the event's name; None: unnamed.
    """
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'), default=str)}\n\n"


async def run_in_thread(function: Callable[..., Result], *args: Any) -> Result:
    """Call a possibly slow function, such as tokenization, in a thread.

    Raises:
        ApiError: the function raised an error.
    """
    try:
        return await asyncio.to_thread(function, *args)
    except Exception as error:
        raise to_api_error(error) from error


async def collect(request: Request, jobs: Sequence[GenerationJob]) -> list[CollectedText]:
    """Read all jobs to their end and return their texts; cancel all jobs if one fails or the client disconnects.

    Raises:
        ApiError: the client disconnected, or a job failed.
    """

    async def read_all() -> list[CollectedText]:
        return list(await asyncio.gather(*(CollectedText(job).read() for job in jobs)))

    return await _unless_disconnected(request, read_all(), jobs)


async def stream(request: Request, lines: AsyncIterator[str], jobs: Sequence[GenerationJob]) -> StreamingResponse:
    """Return a response that sends each line when it is ready, and comments while no line is ready.

    An error in the first `FIRST_SECONDS` becomes an error response with its own status; a later error becomes an event.

    Args:
        jobs: the jobs that produce the lines; cancelled when the response ends.

    Raises:
        ApiError: a job failed or the client disconnected before the response began.
    """

    async def next_line() -> str | None:
        return await anext(lines, None)

    first = asyncio.ensure_future(next_line())
    await _unless_disconnected(request, _wait(first, FIRST_SECONDS), jobs)

    async def all_lines() -> AsyncIterator[str]:
        waiting = first
        try:
            while True:
                while not await _wait(waiting, KEEP_ALIVE_SECONDS):
                    yield KEEP_ALIVE
                line = waiting.result()
                if line is None:
                    return
                yield line
                waiting = asyncio.ensure_future(next_line())
        except Exception as error:  # noqa: BLE001 - the status is sent already, so the error is sent as an event
            yield sse_event(error_body(to_api_error(error)))
        finally:
            waiting.cancel()
            for job in jobs:
                job.cancel()

    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(all_lines(), media_type="text/event-stream", headers=headers)


async def _wait(line: asyncio.Future[str | None], seconds: float) -> bool:
    """Wait at most ``seconds`` for a line; return whether the line has arrived.

    If producing the line failed, the error is raised.
    """
    await asyncio.wait({line}, timeout=seconds)
    if line.done():
        line.result()
    return line.done()


async def merge_events(jobs: Sequence[GenerationJob]) -> AsyncIterator[tuple[int, Event]]:
    """Yield the events of several jobs as they come, each with the index of its job.

    The jobs are cancelled when the iteration ends.
    """
    queue: asyncio.Queue[tuple[int, Event | BaseException | None]] = asyncio.Queue()

    async def read(index: int, job: GenerationJob) -> None:
        try:
            async for event in job.events():
                queue.put_nowait((index, event))
            queue.put_nowait((index, None))
        except Exception as error:  # noqa: BLE001 - raised below, where the events are read
            queue.put_nowait((index, error))

    readers = [asyncio.ensure_future(read(index, job)) for index, job in enumerate(jobs)]
    unfinished = len(jobs)
    try:
        while unfinished:
            index, event = await queue.get()
            if isinstance(event, BaseException):
                raise event
            if event is None:
                unfinished -= 1
            else:
                yield index, event
    finally:
        for reader in readers:
            reader.cancel()
        for job in jobs:
            job.cancel()


async def _unless_disconnected(
    request: Request, work: Coroutine[Any, Any, Result], jobs: Sequence[GenerationJob]
) -> Result:
    """Return the result of ``work``; cancel the jobs if ``work`` fails or the client disconnects first."""
    working, disconnecting = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((working, disconnecting), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ApiError(CLIENT_DISCONNECTED, "The client disconnected.")
        return working.result()
    except BaseException as error:
        for job in jobs:
            job.cancel()
        if isinstance(error, Exception):
            raise to_api_error(error) from error
        raise
    finally:
        for task in (working, disconnecting):
            task.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
