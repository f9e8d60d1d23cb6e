"""Requests to an engine, and the output and sampler of greedy requests, which need no torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from antiphon.accel.decoding.scheduler import Scheduler, scheduler_of
from antiphon.accel.decoding.stats import FinishReason, Step
from antiphon.accel.decoding.step import Output, Request, TokenSampler
from antiphon.accel.drafting.drafters.recycling_table import RecyclingTable, SharesTable, recycling_table_of
from antiphon.accel.engines.protocol import ModelEngine, SequenceOptions

if TYPE_CHECKING:
    from transformers import Cache

    from antiphon.accel.decoding.options import DecodingOptions
    from antiphon.accel.drafting.draft import Drafter, Logits, Tokens


class TokenOutput:
    """A request's tokens. The request ends with an end-of-sequence token or at its maximum length.

    Args:
        tokens: Token ids of the prompt; emitted tokens are appended to this list.
        max_length: Maximum number of tokens, prompt and completion together.
    """

    def __init__(self, tokens: list[int], max_length: int, eos_tokens: set[int]) -> None:
        self.tokens = tokens
        self.max_length = max_length
        self.eos_tokens = eos_tokens
        self.finish: FinishReason | None = None

    @property
    def remaining_tokens(self) -> int:
        """Number of tokens that may still be emitted."""
        return max(self.max_length - len(self.tokens), 0)

    def commit(self, token: int) -> bool:
        """Append a token and return whether generation stops with it."""
        self.tokens.append(token)
        # Criteria first: plain decoding calls them for end tokens too, and they may keep counts.
        if self.meets_criterion() or token in self.eos_tokens:
            self.finish = "stop"
        elif not self.remaining_tokens:
            self.finish = "length"
        return self.finish is not None

    def meets_criterion(self) -> bool:
        """Return whether another stopping criterion is met; this class has none."""
        return False


class GreedySampler:
    """Chooses the most likely token."""

    is_greedy = True
    logits = None

    def bind(self, logits: Logits) -> Callable[[int], int]:
        """Return a function that maps a row of this forward pass to the most likely token after that row."""
        return logits.argmax


class EngineRequest(Request):
    """One request to an engine. The engine's lock must be held while the request is created.

    Args:
        wanted: Options of the request's sequence.
        recycling: As in `antiphon.accel.decoding.model_request.ModelRequest`.
    """

    __slots__ = ("engine",)

    def __init__(
        self,
        engine: ModelEngine,
        drafter: Drafter,
        sampler: TokenSampler,
        output: Output,
        *,
        options: DecodingOptions,
        wanted: SequenceOptions,
        references: Sequence[Tokens] = (),
        recycling: bool | RecyclingTable = True,
        prefill_chunk: int | None = None,
    ) -> None:
        self.engine = engine
        if recycling is not True and isinstance(drafter, SharesTable):
            drafter.use_table(recycling or None)
        table = recycling_table_of(drafter)
        if table is not None and options.max_draft_rows != 0:
            table.prior = engine.bigrams
        super().__init__(
            sequence=engine.new_sequence(output.tokens, wanted),
            drafter=drafter,
            sampler=sampler,
            output=output,
            budget=engine.budget(drafter, options.max_draft_rows, options.cost),
            references=references,
            prefill_chunk=prefill_chunk,
        )

    def steps(self) -> Iterator[Step]:
        """Yield the steps of this request; forward passes are shared with other requests to the same model."""
        return self.release_after(scheduler_of(self.engine).steps(self))

    def release_after(self, steps: Iterator[Step]) -> Iterator[Step]:
        """Yield the given steps, and release the request's memory when they end or the iterator is closed."""
        try:
            yield from steps
        finally:
            scheduler_of(self.engine).after_forward(self, partial(self.engine.release, self.sequence))

    @property
    def cache(self) -> Cache | None:
        """The KV cache of the request; None if the engine has no cache of transformers."""
        return self.engine.cache_of(self.sequence)


class Batch:
    """Decodes up to ``size`` of the requests at the same time; when one ends, the next waiting request starts.

    Requests share only forward passes, not drafts, verification or stopping rules, so each request
    emits the same text as alone. The duration of a shared forward pass counts in the step of every
    request.

    Args:
        release: Called with each request that has finished, even if its last steps have not been read yet.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        requests: Sequence[Request],
        size: int,
        release: Callable[[Request], object] = lambda request: None,
    ) -> None:
        self._scheduler, self._size, self._release = scheduler, size, release
        self._waiting = deque(requests)
        self._active: list[Request] = []
        self._steps: dict[Request, deque[Step | BaseException]] = {request: deque() for request in requests}

    def steps_of(self, request: Request) -> Iterator[Step]:
        """Yield the steps of a request. Reading a step runs forward passes for all active requests.

        Closing the iterator drops the request.
        """
        steps = self._steps[request]
        try:
            while True:
                while not steps:
                    self._advance()
                step = steps.popleft()
                if isinstance(step, BaseException):
                    raise step
                yield step
                if step.finish:
                    return
        finally:
            self._scheduler.leave(request)
            for requests in (self._active, self._waiting):
                if request in requests:
                    requests.remove(request)

    def _advance(self) -> None:
        """Start waiting requests until ``size`` are active, and decode one step of every active one."""
        while self._waiting and len(self._active) < self._size:
            self._active.append(self._waiting.popleft())
        requests = list(self._active)
        for request, step in zip(requests, self._scheduler.advance(requests), strict=True):
            self._steps[request].append(step)
            if isinstance(step, BaseException) or step.finish:
                self._active.remove(request)
                self._release(request)


def decode_together(requests: Sequence[EngineRequest], size: int | None = None) -> list[Iterator[Step]]:
    """Return the steps of each request. The requests share forward passes if the model supports this.

    Args:
        size: Maximum number of requests that are decoded at the same time; None: all.
    """
    engines = {request.engine for request in requests}
    engine = engines.pop() if len(engines) == 1 and len(requests) > 1 else None
    if engine is None or not engine.lock.run(lambda: all(request.sequence.can_batch for request in requests)):
        return [request.steps() for request in requests]
    batch = Batch(scheduler_of(engine), requests, size or len(requests), lambda one: engine.release(one.sequence))
    return [request.release_after(batch.steps_of(request)) for request in requests]
