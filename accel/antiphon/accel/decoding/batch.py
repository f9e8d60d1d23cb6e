"""Several requests that one thread decodes together, a limited number at a time. Independent of models and drafts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from antiphon.accel.decoding.running_request import RunningRequest
from antiphon.accel.decoding.scheduler import Scheduler
from antiphon.accel.decoding.stats import Step


class Batch:
    """Decodes up to ``size`` requests at once; when one finishes, the next waiting one starts.

    Every request has its own drafts, verification and stopping rules, so it emits what it would emit alone. Only the
    forward passes are shared; their duration counts in the steps of every request that shares them.

    Args:
        size: Maximum number of requests that are decoded at the same time.

    Raises:
        ValueError: ``size`` is below 1.
    """

    def __init__(self, scheduler: Scheduler, *, size: int = 8) -> None:
        if size < 1:
            raise ValueError(f"The batch size is {size}; it must be at least 1.")
        self.size = size
        self._scheduler = scheduler
        self._waiting: deque[RunningRequest] = deque()
        self._active: list[RunningRequest] = []
        self._steps: dict[RunningRequest, deque[Step | Exception]] = {}
        self._on_end: dict[RunningRequest, Callable[[], object]] = {}

    @property
    def active(self) -> Sequence[RunningRequest]:
        """The requests that are being decoded now."""
        return tuple(self._active)

    def add(self, request: RunningRequest, on_end: Callable[[], object] | None = None) -> Iterator[Step]:
        """Add a request and return its steps.

        Reading a step runs forward passes for all active requests; closing the iterator drops the request.

        Args:
            on_end: Called when it has finished, even if its last steps have not been read yet.
        """
        self._waiting.append(request)
        self._steps[request] = deque()
        if on_end is not None:
            self._on_end[request] = on_end
        return self._steps_of(request)

    def _steps_of(self, request: RunningRequest) -> Iterator[Step]:
        steps = self._steps[request]
        try:
            while True:
                while not steps:
                    self._advance()
                step = steps.popleft()
                if isinstance(step, Exception):
                    raise step
                yield step
                if step.finish:
                    return
        finally:
            self._drop(request)

    def _advance(self) -> None:
        """Start waiting requests until ``size`` are active, and decode one step of every active one."""
        while self._waiting and len(self._active) < self.size:
            self._active.append(self._waiting.popleft())
        requests = list(self._active)
        for request, step in zip(requests, self._scheduler.advance(requests), strict=True):
            self._steps[request].append(step)
            if isinstance(step, Exception) or step.finish:
                self._active.remove(request)
                if (on_end := self._on_end.pop(request, None)) is not None:
                    on_end()

    def _drop(self, request: RunningRequest) -> None:
        """Free the place of a request that has finished or whose iterator was closed."""
        self._scheduler.leave(request)
        for requests in (self._active, self._waiting):
            if request in requests:
                requests.remove(request)
