"""Events as server-sent events, and jobs that end when their client goes. Knows no protocol above them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse

from antiphon.pipelines.server.errors import ApiError, error_body, error_of
from antiphon.pipelines.server.jobs import Event, TextJob, TextSoFar

Result = TypeVar("Result")

GONE = 499
"""The status that nginx gives to a client that has gone; nobody reads it but the log."""

DONE = "data: [DONE]\n\n"


def event_line(body: Any, name: str | None = None) -> str:
    """A server-sent event."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'), default=str)}\n\n"


async def prepared(make: Callable[..., Result], *given: Any) -> Result:
    """What ``make`` makes of a request, in a thread: it may take a while.

    Raises:
        ApiError: it refuses.
    """
    try:
        return await asyncio.to_thread(make, *given)
    except Exception as error:
        raise error_of(error) from error


async def unless_gone(request: Request, work: Coroutine[Any, Any, Result], jobs: Sequence[TextJob]) -> Result:
    """The result of work for a client that waits for it; when it goes, the jobs end, and with the work.

    Raises:
        ApiError: the client has gone, or the work failed.
    """
    try:
        return await _unless_gone(request, work, jobs)
    finally:
        for job in jobs:
            job.cancel()


async def _unless_gone(request: Request, work: Coroutine[Any, Any, Result], jobs: Sequence[TextJob]) -> Result:
    """The result of work for a client that waits for it; when it goes or the work fails, the jobs end.

    Raises:
        ApiError: the client has gone, or the work failed.
    """
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ApiError(GONE, "The client has gone.")
        return working.result()
    except BaseException as error:
        for job in jobs:
            job.cancel()
        if isinstance(error, Exception):
            raise error_of(error) from error
        raise
    finally:
        for each in (working, leaving):
            each.cancel()


async def _first(lines: AsyncIterator[str]) -> str:
    return await anext(lines)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def read_all(texts: Sequence[TextSoFar]) -> None:
    """Read texts to their ends, all at once."""
    await asyncio.gather(*(text.read() for text in texts))


async def merged(jobs: Sequence[TextJob]) -> AsyncIterator[tuple[int, Event]]:
    """The events of several jobs as they come, each with the place of its job; all are cancelled with whoever reads."""
    queue: asyncio.Queue[tuple[int, Event | BaseException | None]] = asyncio.Queue()

    async def read(place: int, job: TextJob) -> None:
        try:
            async for event in job.events():
                queue.put_nowait((place, event))
            queue.put_nowait((place, None))
        except Exception as error:  # noqa: BLE001 - it is raised where the events are read
            queue.put_nowait((place, error))

    readers = [asyncio.ensure_future(read(place, job)) for place, job in enumerate(jobs)]
    left = len(jobs)
    try:
        while left:
            place, event = await queue.get()
            if isinstance(event, BaseException):
                raise event
            if event is None:
                left -= 1
            else:
                yield place, event
    finally:
        for reader in readers:
            reader.cancel()
        for job in jobs:
            job.cancel()


async def streamed(request: Request, lines: AsyncIterator[str], jobs: Sequence[TextJob]) -> StreamingResponse:
    """The lines as a stream of events; an error before the first is an answer with its status, a later one an event.

    Raises:
        ApiError: the text could not begin, or the client has gone before it did.
    """
    first = await _unless_gone(request, _first(lines), jobs)

    async def all_lines() -> AsyncIterator[str]:
        try:
            yield first
            async for line in lines:
                yield line
        except Exception as error:  # noqa: BLE001 - the answer has begun: it is told as OpenAI's clients expect it
            told = error_of(error)
            yield event_line(error_body(told.status, str(told), told.param, told.code))
        finally:
            for job in jobs:
                job.cancel()

    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(all_lines(), media_type="text/event-stream", headers=headers)
