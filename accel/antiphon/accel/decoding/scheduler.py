"""The scheduler of one engine: running requests of all threads share forward passes.

It uses engines through `antiphon.accel.engines.protocol` only.

A thread that wants the next step of a request puts it into a queue. The thread whose step is the oldest is elected to
run one forward pass for all waiting steps that can share it; the other threads wait until their step is done or they
are elected (flat combining: Hendler et al. 2010). So requests join and leave between any two forward passes, an error
stays with the request that caused it, and nothing is computed for a request whose steps are not read.

A request that decodes alone is computed in its own thread, by `decode_step` without the queue. Shared forward passes
run in one worker thread of the scheduler: threads that take turns would each have a pool of torch threads, which slow
each other down; and Ctrl-C, which reaches the main thread, then never interrupts a shared forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from math import inf
from threading import get_ident
from time import perf_counter, sleep
from typing import cast
from weakref import ref

from antiphon.accel.decoding.running_request import RunningRequest
from antiphon.accel.decoding.stats import Step
from antiphon.accel.decoding.step import StepRequest, decode_step, observe, pad_draft, propose_draft
from antiphon.accel.drafting.budget import cheapest_padding, context_tokens, packing_savings, trim_drafts
from antiphon.accel.drafting.cost_model import CostModel
from antiphon.accel.drafting.draft import EMPTY, Draft, Logits
from antiphon.accel.drafting.verify import verify
from antiphon.accel.engines.protocol import Engine, SequenceInput

JOIN_WINDOW = 1.0
"""Maximum time to wait for a request to join a shared forward pass, as a multiple of a plain step's duration.

The scheduler waits only for requests whose last pause between two steps was shorter than this."""

JOIN_POLL_SECONDS = 1e-4
"""Polling interval while waiting for requests to join."""

WAKE_UP_SECONDS = 0.1
"""Polling interval of waiting threads, in case a wake-up is missed."""

SHORT_PROMPT = 128
"""Prompts of at most this many uncached tokens share forward passes with decoding requests; longer ones only with each
other, up to the engine's ``prefill_batch_tokens``."""


class Scheduler:
    """Decodes the running requests of one engine; use `scheduler_of` to get it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = ref(engine)  # weak, because the engine owns its scheduler and is freed with its model
        self._queue: dict[StepRequest, None] = {}  # in the order in which they were queued
        self._elected: dict[int, StepRequest] = {}  # key 0: the elected step; `setdefault` and `del` are atomic
        self._running: dict[RunningRequest, None] = {}
        self._worker: ThreadPoolExecutor | None = None

    @property
    def engine(self) -> Engine:
        """The engine, which the scheduler does not keep alive."""
        engine = self._engine()
        if engine is None:
            raise ReferenceError("The engine of this scheduler was freed with its model; keep the model.")
        return engine

    @property
    def running(self) -> Sequence[RunningRequest]:
        """The requests that have started and have neither finished nor been dropped."""
        return tuple(self._running)

    def steps(self, request: RunningRequest) -> Iterator[Step]:
        """Yield one Step per forward pass until the request finishes; closing the iterator drops the request.

        The first step prefills the part of the prompt that is not in the KV cache, and verifies a draft only if the
        drafter has one at the start. The emitted tokens depend on the sampler alone, whatever is drafted.
        """
        try:
            while not request.output.finish:
                [step] = self.advance([request])
                if isinstance(step, Exception):
                    raise step
                yield step
        finally:
            self.leave(request)

    def advance(self, requests: Sequence[RunningRequest]) -> list[Step | Exception]:
        """Decode one more step of each request; return the steps, or the exception for a request that failed."""
        steps = [self._begin(request) for request in requests]
        if len(steps) == 1 and len(self._running) == 1:
            requests[0].idle_seconds = inf  # others must not wait for it
            self._run_alone(steps[0])
        else:
            self._run_in_queue(steps)
        return [cast(Step | Exception, step.result) for step in steps]

    def leave(self, request: RunningRequest) -> None:
        """Stop waiting for this request."""
        self._running.pop(request, None)

    def _begin(self, request: RunningRequest) -> StepRequest:
        self._running[request] = None
        request.thread = get_ident()
        step = StepRequest(request)
        request.idle_seconds = step.started_at - request.last_step_at if request.last_step_at else 0.0
        return step

    def _run_alone(self, step: StepRequest) -> None:
        """Decode a step in a separate forward pass, in the calling thread."""
        step.request.must_run_alone = False
        try:
            step.result = decode_step(self.engine, step)
        except Exception as error:  # noqa: BLE001 - raised in the thread that asked for this step, and in no other
            step.result = error
        self._complete(step)

    def _run_in_queue(self, steps: Sequence[StepRequest]) -> None:
        """Propose the drafts in the calling thread, then queue the steps and wait until they are done."""
        try:
            for step in steps:
                try:
                    propose_draft(self.engine, step)
                except Exception as error:  # noqa: BLE001 - as above
                    step.result = error
                    self._complete(step)
            self._queue.update(dict.fromkeys(step for step in steps if step.result is None))
            while (first := next((step for step in steps if step.result is None), None)) is not None:
                self._run_or_wait(first)
        finally:
            for step in steps:
                self._queue.pop(step, None)
            self._wake_oldest()

    def _run_or_wait(self, step: StepRequest) -> None:
        """Run the next forward pass if this step is elected, else wait until it is done or elected."""
        try:
            is_nested = self.engine.lock.is_held  # nested: a logits processor or drafter of another request decodes
            if is_nested or (step is self._oldest() and self._elected.setdefault(0, step) is step):
                self._run_elected(step, is_nested)
            else:
                step.wake.wait(WAKE_UP_SECONDS)
                step.wake.clear()
        finally:
            self._resign(step)

    def _resign(self, step: StepRequest) -> None:
        """Let another step be elected."""
        if self._elected.get(0) is step:
            del self._elected[0]
            self._wake_oldest()

    def _oldest(self) -> StepRequest | None:
        return next((step for step in list(self._queue) if step.result is None), None)

    def _wake_oldest(self) -> None:
        if (step := self._oldest()) is not None:
            step.wake.set()

    def _run_elected(self, step: StepRequest, is_nested: bool) -> None:
        """Run one forward pass for an elected step and for all queued steps that can share it."""
        lock = self.engine.lock
        if is_nested or len(self._running) == 1 or not lock.run(partial(self._can_batch, step)):
            self._queue.pop(step, None)
            self._resign(step)  # so that other threads can run forward passes while this one verifies
            self._run_alone(step)
            return
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "antiphon-forwards")
        self._worker.submit(lock.run, partial(self._run_group, step)).result()

    def _run_group(self, elected: StepRequest) -> None:
        """Collect the steps that share the forward pass of the elected one: decoding steps, or long prompts."""
        is_long = elected.uncached_tokens > SHORT_PROMPT
        if not is_long:
            self._wait_for_joining(elected.request)
        queued = [step for step in list(self._queue) if step.result is None and step is not elected]
        others = [step for step in queued if self._can_batch(step) and (step.uncached_tokens > SHORT_PROMPT) is is_long]
        group = [elected, *others]
        self._run_batch(self._fitting_prompts(group), None) if is_long else self._run_batch(
            group, self.engine.batch_cost
        )

    def _can_batch(self, step: StepRequest) -> bool:
        request = step.request
        if step.uncached_tokens > max(SHORT_PROMPT, self.engine.prefill_batch_tokens):
            return False
        return not request.must_run_alone and request.sequence.can_batch

    def _fitting_prompts(self, prompts: Sequence[StepRequest]) -> list[StepRequest]:
        """Return the first long prompt, and as many further ones as the engine prefills in one forward pass."""
        ends = accumulate(step.uncached_tokens for step in prompts)
        limit = self.engine.prefill_batch_tokens
        return [step for step, end in zip(prompts, ends, strict=True) if step is prompts[0] or end <= limit]

    def _wait_for_joining(self, elected: RunningRequest) -> None:
        """Wait for requests that will probably ask soon, because one shared forward pass costs less than two."""
        cost = self.engine.batch_cost
        window = 0.0 if cost is None else JOIN_WINDOW * cost.seconds(elected.sequence.length, 1)[0]
        until = perf_counter() + window
        while missing := self._missing(window, elected.thread):
            if perf_counter() > until:
                for request in missing:
                    request.idle_seconds = inf
                return
            sleep(JOIN_POLL_SECONDS)

    def _missing(self, window: float, thread: int) -> list[RunningRequest]:
        """Return other threads' requests that are not queued but asked within ``window`` seconds the last time."""
        queued = {step.request for step in list(self._queue)}
        others = [request for request in list(self._running) if request.thread != thread and request not in queued]
        return [request for request in others if request.idle_seconds < window]

    def _run_batch(self, group: Sequence[StepRequest], cost: CostModel | None) -> None:
        """Decode a step of several requests: steps 2 to 6 of `decode_step`, with one forward pass for all.

        If the cost model says that separate forward passes are faster, each request gets one.

        Args:
            cost: Cost model of shared forward passes; None: share in any case.
        """
        if len(group) == 1:
            self._run_alone(group[0])
            return
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
        """Run a shared forward pass; return the logits of each request and the seconds, or no logits if it failed.

        A failed pass may have written some keys and values, so every request is prefilled again, in a separate pass.
        """
        started = perf_counter()
        try:
            return self.engine.forward(inputs), perf_counter() - started
        except BaseException as error:
            for step in group:
                step.request.sequence.reset()
                step.request.must_run_alone, step.draft, step.is_shared = True, EMPTY, False
            if not isinstance(error, Exception):
                raise
            return [], 0.0

    def _finish(self, step: StepRequest, logits: Logits) -> None:
        """Verify a draft after a shared forward pass, keep the accepted rows, and let budget and drafter observe."""
        request, started = step.request, perf_counter()
        try:
            accepted = verify(step.draft or EMPTY, request.sampler.bind(logits), request.output.commit)
            request.sequence.keep(accepted.path)
            step.result = observe(step, accepted, logits, perf_counter() - started)
        except Exception as error:  # noqa: BLE001 - as above
            step.result = error
        self._complete(step)

    def _complete(self, step: StepRequest) -> None:
        """Wake the thread that waits for a finished step."""
        if isinstance(step.result, Exception) or step.request.output.finish:
            self.leave(step.request)
        step.wake.set()


def scheduler_of(engine: Engine) -> Scheduler:
    """Return the scheduler of an engine: there is one, so that all requests of its model can share forward passes."""

    def make() -> None:
        engine.scheduler = engine.scheduler or Scheduler(engine)

    if engine.scheduler is None:
        engine.lock.run(make)
    return cast(Scheduler, engine.scheduler)


def _pad_one(
    group: Sequence[StepRequest], pending: Sequence[list[int]], drafts: Sequence[Draft], cost: CostModel, rows: int
) -> list[Draft]:
    """Return the drafts, with padding rows added to the first one that is not empty if they make the pass cheaper.

    If all drafts are empty, no padding is added, because the next forward pass has the same number of rows.
    """
    padded = list(drafts)
    index = next((at for at, draft in enumerate(drafts) if draft), None)
    if index is not None:
        lengths = [step.cached_tokens for step in group]
        count = cheapest_padding(cost, context_tokens(cost, lengths), rows)
        padded[index] = pad_draft(group[index].request, drafts[index], pending[index][-1], count)
    return padded


def _pays(cost: CostModel, rows: Sequence[int], lengths: Sequence[int], drafts: Sequence[Draft]) -> bool:
    """Return whether one forward pass over all rows is cheaper than one for each request."""
    shared = cost.seconds(_mean_context(cost, lengths), sum(rows))[-1] - packing_savings(cost, lengths, drafts)
    return shared <= sum(cost.seconds(length, own)[-1] for length, own in zip(lengths, rows, strict=True))


def _mean_context(cost: CostModel, lengths: Sequence[int]) -> int:
    """Return `context_tokens`, or the mean length if the engine computes attention over a common padded length."""
    return context_tokens(cost, lengths) if cost.packing else sum(lengths) // len(lengths)
