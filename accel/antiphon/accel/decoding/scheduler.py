"""The scheduler of one engine: one thread in which the running requests share forward passes.

It uses engines through `antiphon.accel.engines.protocol` only.

To get the next step of a request, the caller drafts in its own thread, puts the step into a queue and waits. The
engine's thread takes the steps that can share a forward pass, computes them, and wakes their callers. So requests can
join and leave between any two forward passes. An error affects only the request that caused it, and nothing is
computed for a request whose steps are not read. Ctrl-C reaches the main thread and never interrupts a forward pass.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from math import inf
from queue import Empty, SimpleQueue
from threading import Lock, Thread, current_thread, get_ident
from time import perf_counter
from typing import cast
from weakref import WeakSet, finalize, ref

from antiphon.accel.decoding.stats import Step
from antiphon.accel.decoding.step import (
    Request,
    StepRequest,
    decode_step,
    guess_tokens,
    observe,
    pad_draft,
    propose_draft,
)
from antiphon.accel.drafting.budget import cheapest_padding, context_tokens, packing_savings, trim_drafts
from antiphon.accel.drafting.cost_model import CostModel
from antiphon.accel.drafting.draft import EMPTY, Draft, Logits
from antiphon.accel.drafting.verify import verify
from antiphon.accel.engines.protocol import Engine, SequenceInput

Inbox = SimpleQueue[StepRequest | None]

JOIN_WINDOW = 1.0
"""Maximum time to wait for a request to join a shared forward pass, as a multiple of a plain step's duration.

The scheduler waits only for requests whose last pause between two steps was shorter than this."""

SHORT_PROMPT = 128
"""Prompts of at most this many uncached tokens share forward passes with decoding requests.

Longer prompts share only with each other, up to the engine's ``prefill_batch_tokens``.
"""


class Scheduler:
    """Decodes the running requests of one engine; use `scheduler_of` to get it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = ref(engine)  # weak, because the engine owns its scheduler and is freed with its model
        self._running: dict[Request, None] = {}
        self._inbox: Inbox = SimpleQueue()
        self._steps: dict[Request, StepRequest] = {}  # steps that wait for the thread or are computed by it
        self._queue: dict[StepRequest, None] = {}  # steps that wait, the oldest first; used by the thread alone
        self._computed: dict[Request, Callable[[], object] | None] = {}  # in a forward pass; what to call after it
        self._lock = Lock()  # guards `_computed` and the start of the thread
        self._thread: EngineThread | None = None
        finalize(self, self._inbox.put, None).atexit = False

    @property
    def engine(self) -> Engine:
        """The engine, which the scheduler does not keep alive."""
        engine = self._engine()
        if engine is None:
            raise ReferenceError("The engine of this scheduler was freed with its model; keep the model.")
        return engine

    def steps(self, request: Request) -> Iterator[Step]:
        """Yield one Step per forward pass until the request finishes; closing the iterator drops the request.

        The first step prefills the part of the prompt that is not in the KV cache. This step
        verifies a draft only if the drafter returns a draft before the step. The emitted tokens do
        not depend on the drafts.
        """
        try:
            while not request.output.finish:
                [step] = self.advance([request])
                if isinstance(step, BaseException):
                    raise step
                yield step
        finally:
            self.leave(request)

    def advance(self, requests: Sequence[Request]) -> list[Step | BaseException]:
        """Decode one more step of each request; return the steps, or the exception for a request that failed."""
        steps = [self._begin(request) for request in requests]
        if current_thread() is self._thread:  # called by another request's logits processor or drafter
            for step in steps:
                self._run_alone(step)
        else:
            self._compute(steps)
        return [cast(Step | BaseException, step.result) for step in steps]

    def leave(self, request: Request) -> None:
        """Remove a request that has ended or is no longer read. The owner of the KV cache frees the cache."""
        self._running.pop(request, None)

    def after_forward(self, request: Request, release: Callable[[], object]) -> None:
        """Call ``release`` at once, or after the forward pass that is computing the request.

        Such a pass exists only if the thread that asked for a step was interrupted while it waited.
        """
        with self._lock:
            if request in self._computed:
                self._computed[request] = release
                return
        release()

    def _begin(self, request: Request) -> StepRequest:
        if (earlier := self._steps.get(request)) is not None:
            earlier.done.wait()  # its caller may have been interrupted while it waited
        self._running[request] = None
        request.thread = get_ident()
        step = self._steps[request] = StepRequest(request)
        request.idle_seconds = step.started_at - request.last_step_at if request.last_step_at else 0.0
        return step

    def _compute(self, steps: Sequence[StepRequest]) -> None:
        """Draft in the calling thread, queue the steps and wait until the engine's thread has computed them."""
        engine = self.engine  # stays alive while the steps are computed
        settings = engine.thread_settings()
        self._start_thread()
        try:
            for step in steps:
                step.settings = settings
                try:
                    guess_tokens(step)
                except Exception as error:  # noqa: BLE001 - raised to the caller of this step, and to no other
                    self._complete(step, error)
                else:
                    self._inbox.put(step)
            for step in steps:
                step.done.wait()
        except BaseException:
            for step in steps:
                step.is_abandoned = True
            raise

    def _start_thread(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():  # threads do not survive a fork
                self._thread = EngineThread(self, self._inbox)
                self._thread.start()

    def serve(self, step: StepRequest) -> None:
        """Compute a step and all steps that are queued in the meantime. Called in the engine's thread."""
        self._take(step)
        while True:
            while self._admit(0.0):  # requests join
                pass
            if not self._queue:
                return
            oldest = next(iter(self._queue))
            if oldest.is_abandoned:
                self._complete(oldest, InterruptedError("The caller of this step was interrupted."))
                continue
            try:
                self._run_group(self._group_of(oldest))
            except BaseException as error:  # noqa: BLE001 - the caller of the oldest step must not wait for ever
                self._complete(oldest, error)

    def _admit(self, timeout: float) -> bool:
        """Take the next step from the inbox; return whether there was one within ``timeout`` seconds."""
        try:
            step = self._inbox.get(timeout > 0, max(timeout, 0.0))
        except Empty:
            return False
        if step is not None:
            self._take(step)
        return True

    def _take(self, step: StepRequest) -> None:
        """Put a step into the queue; cut its draft to the rows that its sequence can verify."""
        self._queue[step] = None
        if step.is_abandoned:
            return
        try:
            with self.engine.thread_context(step.settings):
                propose_draft(self.engine, step)
        except BaseException as error:  # noqa: BLE001 - raised to the caller of this step, and to no other
            self._complete(step, error)

    def _group_of(self, oldest: StepRequest) -> list[StepRequest]:
        """Return the steps that share a forward pass with the oldest step: decoding steps, or long prompts."""
        is_only = len(self._running) == 1
        if is_only:
            oldest.request.idle_seconds = inf  # others must not wait for it
        if is_only or not self._can_batch(oldest):
            return [oldest]
        is_long = oldest.uncached_tokens > SHORT_PROMPT
        if not is_long:
            self._wait_for_joining(oldest.request)
        others = [step for step in self._queue if step is not oldest and not step.is_abandoned]
        sharing = [step for step in others if step.settings == oldest.settings and self._can_batch(step)]
        group = [oldest, *(step for step in sharing if (step.uncached_tokens > SHORT_PROMPT) is is_long)]
        return self._fitting_prompts(group) if is_long else group

    def _run_group(self, group: Sequence[StepRequest]) -> None:
        """Compute the steps of a group, and call the release functions that arrived meanwhile."""
        with self._lock:
            self._computed.update(dict.fromkeys(step.request for step in group))
        try:
            with self.engine.thread_context(group[0].settings):
                if len(group) == 1:
                    self._run_alone(group[0])
                else:
                    is_long = group[0].uncached_tokens > SHORT_PROMPT
                    cost = None if is_long else self.engine.batch_cost
                    self.engine.lock.run(partial(self._run_batch, group, cost))
        finally:
            with self._lock:
                releases = [self._computed.pop(step.request) for step in group]
            for release in filter(None, releases):
                release()

    def _run_alone(self, step: StepRequest) -> None:
        """Decode a step in a separate forward pass."""
        step.request.must_run_alone = False
        try:
            self._complete(step, decode_step(self.engine, step))
        except BaseException as error:  # noqa: BLE001 - raised to the caller of this step, and to no other
            self._complete(step, error)

    def _can_batch(self, step: StepRequest) -> bool:
        request = step.request
        if request.must_run_alone or step.uncached_tokens > max(SHORT_PROMPT, self.engine.prefill_batch_tokens):
            return False
        return step.settings.can_batch and self.engine.lock.run(lambda: request.sequence.can_batch)

    def _fitting_prompts(self, prompts: Sequence[StepRequest]) -> list[StepRequest]:
        """Return the first long prompt, and the prompts that the engine can prefill in the same forward pass."""
        ends = accumulate(step.uncached_tokens for step in prompts)
        limit = self.engine.prefill_batch_tokens
        return [step for step, end in zip(prompts, ends, strict=True) if step is prompts[0] or end <= limit]

    def _wait_for_joining(self, oldest: Request) -> None:
        """Wait for requests whose next step probably comes soon, because a shared pass saves time."""
        cost = self.engine.batch_cost
        window = 0.0 if cost is None else JOIN_WINDOW * cost.seconds(oldest.sequence.length, 1)[0]
        until = perf_counter() + window
        while missing := self._missing(window, oldest.thread):
            if not self._admit(until - perf_counter()):
                for request in missing:
                    request.idle_seconds = inf
                return

    def _missing(self, window: float, thread: int) -> list[Request]:
        """Return the requests of other threads that are not queued and whose last pause was shorter than ``window``."""
        queued = {step.request for step in self._queue}
        others = [request for request in list(self._running) if request.thread != thread and request not in queued]
        return [request for request in others if request.idle_seconds < window]

    def _run_batch(self, group: Sequence[StepRequest], cost: CostModel | None) -> None:
        """Decode a step of several requests with one forward pass: stages 2 to 6 of `decode_step`.

        If the cost model expects separate forward passes to be faster, each request gets its own.

        Args:
            cost: Cost model of shared forward passes; None: always share.
        """
        requests = [step.request for step in group]
        pending = [step.begin_forward() for step in group]
        lengths = [step.cached_tokens for step in group]
        # 2. Select rows: the rows of all drafts compete for one forward pass.
        drafts = trim_drafts([step.draft or EMPTY for step in group], [r.budget for r in requests], lengths, cost)
        rows = [len(own) + len(draft) for own, draft in zip(pending, drafts, strict=True)]
        if cost is not None and not _pays(cost, rows, lengths, drafts):
            for step in group:
                self._run_alone(step)
            return
        for step, draft in zip(group, drafts, strict=True):
            step.draft, step.is_shared = draft, True
        padded = list(drafts) if cost is None else _pad_one(group, pending, drafts, cost, sum(rows))
        inputs = [
            SequenceInput(request.sequence, own, draft, request.prefill_chunk, needs_best=request.sampler.is_greedy)
            for request, own, draft in zip(requests, pending, padded, strict=True)
        ]
        # 3. Forward pass over all sequences.
        all_logits, seconds = self._forward_batch(group, inputs)
        if cost is not None and all_logits:
            num_rows = sum(len(own) + len(draft) for own, draft in zip(pending, padded, strict=True))
            cost.observe(num_rows, _mean_context(cost, lengths), seconds, packing_savings(cost, lengths, drafts))
        # 4. to 6. Verify, keep, observe.
        for step, logits, draft in zip(group, all_logits, padded, strict=bool(all_logits)):
            step.forward_seconds = seconds
            self._finish(step, logits if draft is step.draft else logits.head(len(step.draft or EMPTY)))

    def _forward_batch(
        self, group: Sequence[StepRequest], inputs: Sequence[SequenceInput]
    ) -> tuple[list[Logits], float]:
        """Run a shared forward pass; return the requests' logits (none on failure) and the duration in seconds.

        A failed pass may have written some keys and values, so every request is prefilled again in a separate pass.
        """
        started = perf_counter()
        try:
            return self.engine.forward(inputs), perf_counter() - started
        except BaseException:  # noqa: BLE001 - the separate passes show which request caused it
            for step in group:
                step.request.sequence.reset()
                step.request.must_run_alone, step.draft, step.is_shared = True, EMPTY, False
            return [], 0.0

    def _finish(self, step: StepRequest, logits: Logits) -> None:
        """Verify a draft after a shared forward pass, keep the accepted rows, and update budget and drafter."""
        request, started = step.request, perf_counter()
        try:
            accepted = verify(step.draft or EMPTY, request.sampler.bind(logits), request.output.commit)
            request.sequence.keep(accepted.path)
            self._complete(step, observe(step, accepted, logits, perf_counter() - started))
        except BaseException as error:  # noqa: BLE001 - as above
            self._complete(step, error)

    def _complete(self, step: StepRequest, result: Step | BaseException) -> None:
        """Give the caller of a step its result."""
        step.result = result
        self._queue.pop(step, None)
        del self._steps[step.request]
        if isinstance(result, BaseException) or step.request.output.finish:
            self.leave(step.request)
        step.done.set()


class EngineThread(Thread):
    """Computes the steps in the inbox until it reads None.

    While the thread waits, it does not keep the engine alive.
    """

    def __init__(self, scheduler: Scheduler, inbox: Inbox) -> None:
        super().__init__(name="antiphon-engine", daemon=True)
        self.inbox = inbox
        self._scheduler = ref(scheduler)
        _threads.add(self)

    def run(self) -> None:
        """Compute the steps in the inbox until it contains None."""
        while (step := self.inbox.get()) is not None:
            if (scheduler := self._scheduler()) is not None:
                scheduler.serve(step)
            del scheduler, step


_threads: WeakSet[EngineThread] = WeakSet()


@atexit.register
def _finish_forwards() -> None:
    """Wait for running forward passes at exit, before the libraries that they use are unloaded."""
    for thread in list(_threads):
        thread.inbox.put(None)
        thread.join()


def scheduler_of(engine: Engine) -> Scheduler:
    """Return the only scheduler of an engine, so that all requests to its model can share forward passes."""

    def make() -> None:
        engine.scheduler = engine.scheduler or Scheduler(engine)

    if engine.scheduler is None:
        engine.lock.run(make)
    return cast(Scheduler, engine.scheduler)


def _pad_one(
    group: Sequence[StepRequest], pending: Sequence[list[int]], drafts: Sequence[Draft], cost: CostModel, rows: int
) -> list[Draft]:
    """Add padding rows to the first non-empty draft if they make the forward pass cheaper; return all drafts.

    No rows are added if all drafts are empty: without drafts, every step has the same number of
    rows.
    """
    padded = list(drafts)
    index = next((at for at, draft in enumerate(drafts) if draft), None)
    if index is not None:
        lengths = [step.cached_tokens for step in group]
        count = cheapest_padding(cost, context_tokens(cost, lengths), rows)
        padded[index] = pad_draft(group[index].request, drafts[index], pending[index][-1], count)
    return padded


def _pays(cost: CostModel, rows: Sequence[int], lengths: Sequence[int], drafts: Sequence[Draft]) -> bool:
    """Return whether one shared forward pass is cheaper than a separate forward pass for each request."""
    shared = cost.seconds(_mean_context(cost, lengths), sum(rows))[-1] - packing_savings(cost, lengths, drafts)
    return shared <= sum(cost.seconds(length, own)[-1] for length, own in zip(lengths, rows, strict=True))


def _mean_context(cost: CostModel, lengths: Sequence[int]) -> int:
    """Return the result of `context_tokens`; if the engine pads sequences to equal length, return their mean length."""
    return context_tokens(cost, lengths) if cost.packing else sum(lengths) // len(lengths)
