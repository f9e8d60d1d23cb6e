"""The body of a request: so many bytes in so many seconds, and dropped where nobody wants it. Knows no endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers

from antiphon.pipelines.server.errors import ApiError, BodyError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

LEAST_RATE = 16 * 2**10
"""Bytes that give a body another second: a large one over a slow line has its time, one that trickles in has not."""

MOST_DROPPED = 256 * 2**20
"""Bytes of a body that nobody wants which are read nevertheless: most clients send all of it before they listen."""


class RequestBody:
    """Hands the body of a request on: ``most`` bytes at most, in ``seconds`` and the time that `LEAST_RATE` gives."""

    def __init__(self, headers: Headers, receive: Receive, *, most: int, seconds: float) -> None:
        length = headers.get("content-length", "0")
        self.announced = int(length) if length.isdigit() else 0
        self._is_whole = not self.announced and "transfer-encoding" not in headers
        self._is_held = headers.get("expect", "").lower() == "100-continue"
        self._receive = receive
        self._most = most
        self._seconds = seconds
        self._began = asyncio.get_running_loop().time()
        self._read = 0

    @property
    def is_coming(self) -> bool:
        """Whether the client is sending more than was read; one that asked whether to send at all is not yet."""
        return not self._is_whole and not self._is_held

    async def receive(self) -> Message:
        """The next piece, as the server's protocol gives it; after the last one, that the client has gone.

        Raises:
            BodyError: the body is too large, or it takes too long.
        """
        if self._is_whole:
            return await self._receive()
        try:
            message = await self._next()
        except TimeoutError as error:
            raise BodyError(too_slow(self._seconds)) from error
        if self._read > self._most:
            raise BodyError(too_large(self._most))
        return message

    def leave(self) -> None:
        """Wait for no more of it."""
        self._is_whole = True

    async def drop(self) -> None:
        """Read what is left and forget it, so that a client which is still sending hears the answer.

        One that sends too much or too slowly is not waited for.
        """
        try:
            while self.is_coming and self._read < MOST_DROPPED:
                await self._next()
        except TimeoutError:
            return

    async def _next(self) -> Message:
        self._is_held = False
        async with asyncio.timeout_at(self._began + self._seconds + self._read / LEAST_RATE):
            message = await self._receive()
        self._read += len(message.get("body", b""))
        self._is_whole = not message.get("more_body", False)
        return message


def too_large(most: int) -> ApiError:
    """The error of a body of more than ``most`` bytes."""
    return ApiError(413, f"The body is larger than the {most} bytes that this server takes.", code="too_large")


def too_slow(seconds: float) -> ApiError:
    """The error of a body that was not there in time."""
    message = f"The body was not there after {seconds:g} s and one more for each {LEAST_RATE} bytes; send it at once."
    return ApiError(408, message, code="too_slow", headers={"Connection": "close"})
