"""Texts on their way: decoded in threads, one each, and read from the event loop. Knows neither HTTP nor prompts."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from time import perf_counter
from typing import Protocol

from antiphon.accel import Completion, Origin, Stream
from antiphon.accel.decoding.logprobs import TokenLogprob
from antiphon.pipelines.server.errors import ApiError, ending
from antiphon.retrieval import Passage

BUSY = "The server takes no more requests now; try again in {} s."


@dataclass(frozen=True, slots=True)
class Begun:
    """A text that is ready to be decoded: its stream, the passages that it may cite, and what ends with it."""

    stream: Stream
    passages: tuple[Passage, ...] = ()
    then: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Grown:
    """What a text has grown by: characters, and tokens with how they came to be; ``written`` counts all of them."""

    text: str
    tokens: tuple[int, ...]
    origins: tuple[Origin, ...]
    logprobs: tuple[TokenLogprob, ...]
    written: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A text that has ended; ``first_seconds`` passed from the request to the first token, ``seconds`` in all."""

    completion: Completion
    waited: float
    first_seconds: float
    seconds: float


Event = Begun | Grown | Finished


class Watcher(Protocol):
    """Who is told of texts that began to wait, began, and ended."""

    def ended(self, event: Finished | BaseException) -> None:
        """A text has ended, by itself or not."""


@dataclass(eq=False, slots=True)
class TextJob:
    """One text that somebody wants; its events are read once, in the event loop that it was made in."""

    begin: Callable[[], Begun]
    tenant: str
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    asked: float = field(default_factory=perf_counter)
    is_cancelled: bool = False
    _events: asyncio.Queue[Event | BaseException] = field(default_factory=asyncio.Queue)
    _begun: Begun | None = None

    async def events(self) -> AsyncIterator[Event]:
        """What becomes of it, the last one a `Finished`; an error in decoding is raised. Leaving it cancels the job."""
        try:
            while True:
                event = await self._events.get()
                if isinstance(event, BaseException):
                    raise event
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Stop decoding after the forward under way; one that has ended stays as it is."""
        was_cancelled, self.is_cancelled = self.is_cancelled, True
        if self._begun is not None and not was_cancelled:
            with suppress(RuntimeError):  # the loop ends too
                self.loop.run_in_executor(None, self._begun.stream.close)

    def decode(self) -> Finished:
        """Decode it to its end, in the calling thread."""
        started = perf_counter()
        begun = self._begun = self.begin()
        try:
            self.tell(begun)
            first, told = 0.0, 0
            with begun.stream as stream:
                for text in () if self.is_cancelled else stream:
                    first = first or perf_counter() - self.asked
                    grown = _grown(stream, text, told)
                    told = grown.written
                    self.tell(grown)
                    if self.is_cancelled:
                        break
            completion = stream.completion
            if completion.usage.completion_tokens > told or completion.text == "":
                self.tell(_grown(stream, "", told))
            now = perf_counter()
            return Finished(completion, started - self.asked, first or now - self.asked, now - self.asked)
        finally:
            if begun.then is not None:
                begun.then()

    def tell(self, event: Event | BaseException) -> None:
        """Hand an event over to whoever reads."""
        with suppress(RuntimeError):  # the loop has ended, and nobody reads
            self.loop.call_soon_threadsafe(self._events.put_nowait, event)


@dataclass(slots=True)
class TextSoFar:
    """A text whose job is being read: what has come of it."""

    job: TextJob
    begun: Begun | None = None
    ended: Finished | None = None
    text: str = ""
    tokens: list[int] = field(default_factory=list)

    def take(self, event: Event) -> None:
        """Take an event in."""
        match event:
            case Begun():
                self.begun = event
            case Grown():
                self.text += event.text
                self.tokens += event.tokens
            case Finished():
                self.ended = event

    async def read(self) -> TextSoFar:
        """Read it to its end."""
        async for event in self.job.events():
            self.take(event)
        return self


class Scheduler:
    """Decodes ``parallel`` jobs at a time, and lets ``waiting`` more wait: tenants take turns, each first come first.

    Jobs that are decoded at once share forwards, by the language model's own loop.
    """

    def __init__(self, *, parallel: int, waiting: int, watcher: Watcher) -> None:
        self._pool = ThreadPoolExecutor(parallel, thread_name_prefix="antiphon-text")
        self._parallel, self._most_waiting = parallel, waiting
        self._watcher = watcher
        self._lines: OrderedDict[str, deque[TextJob]] = OrderedDict()
        self._running: dict[TextJob, None] = {}
        self._lock = Lock()
        self._has_ended = False
        self._seconds = 1.0  # that a job takes, on the average of late

    @property
    def running(self) -> int:
        """How many jobs are being decoded."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """How many jobs wait that somebody waits for."""
        with self._lock:
            return sum(not job.is_cancelled for line in self._lines.values() for job in line)

    def submit(self, jobs: Sequence[TextJob]) -> None:
        """Have these jobs decoded, all of them or none.

        Raises:
            ApiError: there is no room for them, and says when to come again; or the server is ending.
        """
        with self._lock:
            if self._has_ended:
                raise ending()
            self._drop_cancelled()
            waiting = sum(map(len, self._lines.values()))
            if waiting + self.running + len(jobs) > self._parallel + self._most_waiting:
                pause = max(1, round(self._seconds * (waiting + 1) / self._parallel))
                raise ApiError(429, BUSY.format(pause), code="queue_full", headers={"Retry-After": str(pause)})
            for job in jobs:
                self._lines.setdefault(job.tenant, deque()).append(job)
        for _ in jobs:
            self._pool.submit(self._serve)

    def end(self) -> None:
        """Take no more, and give up what is not ready: whoever waits for it is told."""
        with self._lock:
            self._has_ended = True
            left = [*self._running, *(job for line in self._lines.values() for job in line)]
            self._lines.clear()
        for job in left:
            job.tell(ending())
            job.cancel()

    def close(self) -> None:
        """End, and wait for the forwards under way."""
        self.end()
        self._pool.shutdown(cancel_futures=True)

    def _serve(self) -> None:
        job = self._next()
        if job is None:
            return
        event: Finished | BaseException
        try:
            event = job.decode()
            self._seconds += 0.2 * (event.seconds - self._seconds)
        except Exception as error:  # noqa: BLE001 - it is raised where the text is read
            event = error
        finally:
            self._running.pop(job, None)
        self._watcher.ended(event)
        job.tell(event)

    def _drop_cancelled(self) -> None:
        """Make room of those that nobody waits for any more."""
        left = {name: [job for job in line if not job.is_cancelled] for name, line in self._lines.items()}
        self._lines = OrderedDict((name, deque(line)) for name, line in left.items() if line)

    def _next(self) -> TextJob | None:
        """The first job of the tenant whose turn it is."""
        with self._lock:
            while self._lines:
                tenant, line = self._lines.popitem(last=False)
                job = line.popleft()
                if line:
                    self._lines[tenant] = line
                if not job.is_cancelled:
                    self._running[job] = None
                    return job
        return None


def _grown(stream: Stream, text: str, told: int) -> Grown:
    tokens = tuple(stream.tokens_from(told))
    return Grown(text, tokens, tuple(stream.origins_from(told)), tuple(stream.logprobs_from(told)), told + len(tokens))
