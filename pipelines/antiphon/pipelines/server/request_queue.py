"""The queue of generations. A thread decodes each generation, and sends events to the event loop.

If the queue is full, requests are refused with status 429.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from threading import Lock
from time import perf_counter, time_ns

from antiphon.accel import Completion, Origin, Stream
from antiphon.accel.decoding.stats import TokenLogprob
from antiphon.accel.text.completion import Piece
from antiphon.pipelines.citations import Citation
from antiphon.pipelines.extractive_model import QuotedStream
from antiphon.pipelines.request_plan import RequestPlan
from antiphon.pipelines.server.errors import ApiError, shutdown_error
from antiphon.pipelines.tracing import Span, end_generation
from antiphon.retrieval import Passage

QUEUE_FULL = "The queue of this server is full; try again in {} s."


@dataclass(frozen=True, slots=True)
class Started:
    """The first event of a generation.

    Attributes:
        on_end: called once when decoding ends, even by an error or a cancellation.
        span: the span of the generation; both end together.
        quote: future of the best quote of the passages. Another thread searches for the quote.
            None: there is no search.
    """

    stream: Stream | QuotedStream
    plan: RequestPlan
    on_end: Callable[[], None]
    span: Span
    quote: Future[Citation | None] | None = None

    @property
    def passages(self) -> tuple[Passage, ...]:
        """The passages that the text may cite."""
        return self.plan.passages


@dataclass(frozen=True, slots=True)
class Delta:
    """New text and tokens of a generation, with the origins and log-probabilities of the tokens.

    ``reasoning`` is new text of the thinking; its tokens have no log-probabilities. ``num_tokens`` is the number of
    all tokens generated so far, ``reasoning_tokens`` the number of thinking tokens.
    """

    text: str
    tokens: tuple[int, ...]
    origins: tuple[Origin, ...]
    logprobs: tuple[TokenLogprob, ...]
    num_tokens: int
    reasoning: str = ""
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a generation, with the seconds from the request until the start, the first token and the end.

    ``cached_tokens`` is the number of prompt tokens that an earlier request prefilled.
    """

    completion: Completion
    queue_seconds: float
    first_token_seconds: float
    seconds: float
    cached_tokens: int = 0


Event = Started | Delta | Finished
Report = Callable[[Finished | BaseException], None]


@dataclass(eq=False, slots=True)
class GenerationJob:
    """One generation. A thread decodes it; its events are read once, in the event loop that created the job.

    Attributes:
        start: creates the stream; called in the decoding thread.
        tenant: the name of the tenant, for fair queueing.
        context: the context of the caller, with the current span.
    """

    start: Callable[[], Started]
    tenant: str
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    created: float = field(default_factory=perf_counter)
    context: Context = field(default_factory=copy_context)
    is_cancelled: bool = False
    _events: asyncio.Queue[Event | BaseException] = field(default_factory=asyncio.Queue)
    _started: Started | None = None
    _unsent: Started | None = None
    _lock: Lock = field(default_factory=Lock)

    async def events(self) -> AsyncIterator[Event]:
        """Yield the events. The last event is a `Finished`. If decoding fails, its error is raised.

        Leaving the iteration early cancels the job.
        """
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
        """Stop decoding after the current forward pass; a finished job stays finished."""
        was_cancelled, self.is_cancelled = self.is_cancelled, True
        if self._started is not None and not was_cancelled:
            with suppress(RuntimeError):  # the event loop is closing too
                self.loop.run_in_executor(None, self._started.stream.close)

    def decode(self) -> Finished:
        """Decode to the end, in the calling thread, and send events to the event loop."""
        dequeued = perf_counter()
        Span("queue", start=time_ns() - int((dequeued - self.created) * 1e9)).end()
        started = self._started = self._unsent = self.start()
        try:
            if started.quote is None:
                self._send_started()
            else:
                started.quote.add_done_callback(self._send_started)
            first_token, num_tokens = 0.0, 0
            with started.stream as stream:
                for piece in () if self.is_cancelled else iter(stream.next_piece, None):
                    delta = _delta(stream, piece, num_tokens)
                    num_tokens = delta.num_tokens
                    if num_tokens and not first_token:
                        first_token = perf_counter() - self.created
                    self._send_started()
                    self.send(delta)
                    if self.is_cancelled:
                        break
            self._send_started()
            completion = stream.completion
            if completion.usage.completion_tokens > num_tokens or completion.text == "":
                self.send(_delta(stream, Piece(""), num_tokens))
            seconds = perf_counter() - self.created
            prefilled = completion.steps.prefill_tokens  # unknown, so 0, if another server runs the model
            cached = max(completion.usage.prompt_tokens - prefilled, 0) if prefilled else 0
            end_generation(started.span, completion, is_answer=bool(started.passages), cached_tokens=cached)
            return Finished(completion, dequeued - self.created, first_token or seconds, seconds, cached)
        except BaseException as error:
            started.span.end(error)
            raise
        finally:
            started.on_end()

    def _send_started(self, _: object = None) -> None:
        """Send the `Started` event once: when its quote has been found, but at the latest before the first text."""
        with self._lock:
            started, self._unsent = self._unsent, None
            if started is not None:
                self.send(started)

    def send(self, event: Event | BaseException) -> None:
        """Put an event into the queue that `events` reads."""
        with suppress(RuntimeError):  # the event loop is closed, so there is no reader
            self.loop.call_soon_threadsafe(self._events.put_nowait, event)


@dataclass(slots=True)
class CollectedText:
    """The events of a job, collected into one result."""

    job: GenerationJob
    started: Started = field(init=False)
    finished: Finished = field(init=False)
    text: str = ""
    reasoning: str = ""
    tokens: list[int] = field(default_factory=list)

    def add(self, event: Event) -> None:
        """Add an event."""
        match event:
            case Started():
                self.started = event
            case Delta():
                self.text += event.text
                self.reasoning += event.reasoning
                self.tokens += event.tokens
            case Finished():
                self.finished = event

    async def read(self) -> CollectedText:
        """Read the job to its end."""
        async for event in self.job.events():
            self.add(event)
        return self


class RequestQueue:
    """Decodes several jobs at a time and queues the others. Tenants take turns; the jobs of one tenant run in order.

    Jobs that run at the same time share forward passes through the language model's scheduler.

    Args:
        report: called with the result of every generation, or with the exception that ended it.
    """

    def __init__(self, *, max_running: int, max_waiting: int, report: Report = lambda event: None) -> None:
        self._pool = ThreadPoolExecutor(max_running, thread_name_prefix="antiphon-generation")
        self._max_running, self._max_waiting = max_running, max_waiting
        self._report = report
        self._waiting: OrderedDict[str, deque[GenerationJob]] = OrderedDict()  # by tenant, the next one first
        self._running: dict[GenerationJob, None] = {}
        self._lock = Lock()
        self._is_shut_down = False
        self._mean_seconds = 1.0  # moving average of a job's duration

    @property
    def running(self) -> int:
        """The number of jobs that are being decoded."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """The number of waiting jobs, without cancelled ones."""
        with self._lock:
            return sum(not job.is_cancelled for jobs in self._waiting.values() for job in jobs)

    def submit(self, jobs: Sequence[GenerationJob]) -> None:
        """Queue all jobs, or none of them if the queue does not have room for all.

        Raises:
            ApiError: 429, the queue is full (with ``Retry-After``); 503, the server is shutting down.
        """
        with self._lock:
            if self._is_shut_down:
                raise shutdown_error()
            remaining = {name: [job for job in jobs if not job.is_cancelled] for name, jobs in self._waiting.items()}
            self._waiting = OrderedDict((name, deque(own)) for name, own in remaining.items() if own)
            waiting = sum(map(len, self._waiting.values()))
            if waiting + self.running + len(jobs) > self._max_running + self._max_waiting:
                retry_after = max(1, round(self._mean_seconds * (waiting + 1) / self._max_running))
                headers = {"Retry-After": str(retry_after)}
                raise ApiError(429, QUEUE_FULL.format(retry_after), code="queue_full", headers=headers)
            for job in jobs:
                self._waiting.setdefault(job.tenant, deque()).append(job)
        for _ in jobs:
            self._pool.submit(self._run_next)

    def shut_down(self) -> None:
        """Refuse new jobs, cancel running and waiting ones, and send their clients the shutdown error."""
        with self._lock:
            self._is_shut_down = True
            running = list(self._running)
            waiting = [job for jobs in self._waiting.values() for job in jobs]
            self._waiting.clear()
        for job in (*running, *waiting):
            job.send(shutdown_error())
            job.cancel()

    def close(self) -> None:
        """Shut down and wait for the forward passes in progress."""
        self.shut_down()
        self._pool.shutdown(cancel_futures=True)

    def _run_next(self) -> None:
        job = self._next()
        if job is None:
            return
        event: Finished | BaseException
        try:
            event = job.context.run(job.decode)
            self._mean_seconds += 0.2 * (event.seconds - self._mean_seconds)
        except Exception as error:  # noqa: BLE001 - raised where the events are read
            event = error
        finally:
            self._running.pop(job, None)
        self._report(event)
        job.send(event)

    def _next(self) -> GenerationJob | None:
        """Move the first job of the next tenant from waiting to running, and make this tenant the last to be served."""
        with self._lock:
            while self._waiting:
                tenant, jobs = self._waiting.popitem(last=False)
                job = jobs.popleft()
                if jobs:
                    self._waiting[tenant] = jobs
                if not job.is_cancelled:
                    self._running[job] = None
                    return job
        return None


def _delta(stream: Stream | QuotedStream, piece: Piece, num_sent: int) -> Delta:
    """Return the delta with a piece of text, and with the tokens after the first ``num_sent`` tokens."""
    tokens, thought = tuple(stream.tokens_from(num_sent)), stream.reasoning_tokens
    origins, logprobs = tuple(stream.origins_from(num_sent)), tuple(stream.logprobs_from(max(num_sent, thought)))
    text, reasoning = ("", piece.text) if piece.is_thinking else (piece.text, "")
    return Delta(text, tokens, origins, logprobs, num_sent + len(tokens), reasoning, thought)
