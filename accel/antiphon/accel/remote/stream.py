"""An answer from elsewhere while it comes in. Nothing that was received is lost, whatever happens to the rest."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from time import perf_counter
from typing import Any

from antiphon.accel.decoding.stats import FinishReason, Summary
from antiphon.accel.remote.chunk import ToolCallParts, Chunk, parse_chunk
from antiphon.accel.remote.client import BROKEN, Client
from antiphon.accel.remote.errors import BrokenStreamError
from antiphon.accel.text.completion import Completion, TextStream, Usage

__all__ = ["RemoteStream"]


class RemoteStream(TextStream):
    """Text as a server generates it: iterate over its pieces, whose concatenation is the completion's text.

    The server is asked when the first piece is; from then on it generates by itself, until the text ends or the stream
    is closed, from any thread, which closes the connection. Tools that the answer calls are its last piece, each
    written as ``<tool_call>`` with its JSON.

    ``chosen`` are the temperature and repetition penalty that were asked for, for the completion to say.
    """

    def __init__(self, client: Client, begin: Callable[[], Any], *, chosen: tuple[float, float] = (0.0, 1.0)) -> None:
        self._client = client
        self._begin = begin
        self._chosen = chosen
        self._response: Any = None
        self._events: Any = None
        self._calls = ToolCallParts()
        self._told = Chunk()
        self._pieces: list[str] = []
        self._tokens: list[int] = []
        self._chunks = 0
        self._started = self._first = self._last = 0.0
        self._ending: FinishReason | None = None  # why the server says that it ends, while it may still tell the cost
        self._finish: FinishReason | None = None
        self._is_closed = False

    def __next__(self) -> str:
        try:
            while self._finish is None and not self._is_closed:
                if piece := self._advance():
                    self._pieces.append(piece)
                    return piece
        except BaseException:
            self._is_closed = True  # a piece may be lost to Ctrl-C; the next one would leave a gap
            raise
        raise StopIteration

    @property
    def completion(self) -> Completion:
        """What was said, once the stream has ended or is closed.

        Tokens, usage and steps are as far as the server tells them: where it does not count, a chunk counts as a token,
        and where it says nothing of drafts, ``steps.steps`` is 0.

        Raises:
            RuntimeError: the stream has not ended yet, or could not begin.
        """
        if self._finish is None:
            raise RuntimeError("The stream has not ended; iterate over it to its end, or close it, for its completion.")
        told, (temperature, repetition_penalty) = self._told, self._chosen
        written = self._chunks if told.written is None else told.written
        return Completion(
            text="".join(self._pieces),
            finish_reason=self._finish,
            usage=Usage(told.prompt or 0, written),
            steps=self._steps(written),
            tokens=tuple(self._tokens),
            temperature=temperature,
            repetition_penalty=repetition_penalty,
        )

    def close(self) -> None:
        """End the connection, at which a server stops generating; the completion is what was received until now."""
        self._is_closed = True
        self._end("cancelled")

    def _advance(self) -> str:
        """The text of the next chunk; at the end that of the calls."""
        try:
            if self._events is None:
                self._started = perf_counter()
                self._response = self._begin()
                self._events = iter(self._response)
            event = next(self._events, None)
        except BROKEN as error:
            return self._broke_off(error)
        if event is not None:
            return self._read(parse_chunk(event.to_dict()))
        if self._ending is None:
            return self._broke_off(None)
        self._end(self._ending)
        return self._calls.text

    def _read(self, chunk: Chunk) -> str:
        now = perf_counter()
        self._last = now
        self._calls.add(chunk.calls)
        self._tokens += chunk.tokens
        self._ending = chunk.finish or self._ending
        if chunk.text or chunk.tokens or chunk.calls:
            self._first = self._first or now
            self._chunks += 1
        fields = ("prompt", "written", "accepted", "drafted", "verified")
        told = {name: value for name in fields if (value := getattr(chunk, name)) is not None}
        self._told = replace(self._told, **told)
        return chunk.text

    def _broke_off(self, error: Exception | None) -> str:
        """Nothing, where whoever closed the stream broke it off; else the error, with what was received."""
        is_wanted = self._is_closed
        if error is not None and not self._chunks and not is_wanted:
            self.close()
            raise self._client.explained(error) from error
        self._end("cancelled")
        if is_wanted:
            return ""
        why = self._client.explained(error) if error else "the server ended it without saying why"
        said = sum(map(len, self._pieces))
        raise BrokenStreamError(f"The answer broke off after {said} characters: {why}", self.completion) from error

    def _steps(self, written: int) -> Summary:
        """What the server told of its steps: each emits what was accepted and one token more.

        A server counts as accepted what the last step had beyond the answer's end; here that is no part of the answer.
        """
        told, verified = self._told.accepted, self._told.verified or 0
        steps = 0 if told is None else max(written - told, 1 + verified)
        return Summary(
            steps=steps,
            tokens=written,
            drafted=self._told.drafted or 0,
            accepted=max(written - steps, 0) if steps else 0,
            seconds=max(self._last - self._started, 0.0),
            prefill_seconds=max(self._first - self._started, 0.0),
        )

    def _end(self, finish: FinishReason) -> None:
        self._finish = self._finish or finish
        response, self._response = self._response, None
        if response is not None:
            with suppress(*BROKEN, RuntimeError):  # it may be broken already, or be read at this moment
                response.close()
